package pyromq.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ 5's gRPC client: `ENDPOINTS COMMAND ARGUMENT...`. Lines of JSON come out. Node's driver is its twin. */
public final class GrpcDriver {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final ClientServiceProvider CLIENTS = ClientServiceProvider.loadService();
    private static final int SECONDS = 100;

    private final ClientConfiguration configuration;

    private GrpcDriver(String endpoints) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .setRequestTimeout(Duration.ofSeconds(6)).enableSsl(System.getenv("PLAIN") == null);
        String accessKey = System.getenv("ACCESS_KEY");
        if (accessKey != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, System.getenv("SECRET_KEY")));
        }
        configuration = builder.build();
    }

    public static void main(String[] arguments) {
        int code = 0;
        try {
            new GrpcDriver(arguments[0]).run(arguments[1], Arrays.copyOfRange(arguments, 2, arguments.length));
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code); // the client leaves threads behind
    }

    private void run(String command, String[] rest) throws Exception {
        switch (command) {
            case "send": // TOPIC KIND...
                send(rest[0], Arrays.copyOfRange(rest, 1, rest.length));
                break;
            case "orphan": // TOPIC; ends when the transaction was checked
                orphan(rest[0]);
                break;
            case "receive": // TOPIC GROUP EXPRESSION COUNT
                receive(rest[0], rest[1], rest[2], Integer.parseInt(rest[3]));
                break;
            case "again": // TOPIC GROUP; one message, twice
                again(rest[0], rest[1]);
                break;
            case "abandon": // TOPIC GROUP; acknowledges one message, receives another one and dies
                abandon(rest[0], rest[1]);
                break;
            case "push": // TOPIC GROUP EXPRESSION COUNT FAILURES; each message fails so often; ends after COUNT calls
                push(rest[0], rest[1], rest[2], Integer.parseInt(rest[3]), Integer.parseInt(rest[4]));
                break;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    /** Sends a message of each kind, with the kind as its body, and tells the error of one that is refused. */
    private void send(String topic, String[] kinds) throws Exception {
        try (Producer producer = CLIENTS.newProducerBuilder().setClientConfiguration(configuration)
            .setTransactionChecker(view -> TransactionResolution.UNKNOWN).build()) {
            for (String kind : kinds) {
                try {
                    write(Map.of("body", kind, "messageId", sendOne(producer, topic, kind)));
                } catch (Exception error) {
                    write(Map.of("body", kind, "error", String.valueOf(error.getMessage())));
                }
            }
        }
    }

    private String sendOne(Producer producer, String topic, String kind) throws Exception {
        MessageBuilder builder = CLIENTS.newMessageBuilder().setTopic(topic).setTag("paid").setKeys("k1", "k2")
            .setBody(kind.getBytes(StandardCharsets.UTF_8)).addProperty("amount", "7");
        switch (kind.split("-")[0]) {
            case "fifo":
                builder.setMessageGroup("customer-3");
                break;
            case "delay":
            case "recall":
                builder.setDeliveryTimestamp(System.currentTimeMillis() + 3000);
                break;
            case "large":
                builder.setBody(new byte[4 << 20]);
                break;
            default:
        }
        Message message = builder.build();
        if (kind.equals("commit") || kind.equals("rollback")) {
            Transaction transaction = producer.beginTransaction();
            SendReceipt receipt = producer.send(message, transaction);
            if (kind.equals("commit")) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
            return receipt.getMessageId().toString();
        }
        SendReceipt receipt = kind.startsWith("async") ? producer.sendAsync(message).get() : producer.send(message);
        if (kind.equals("recall")) {
            return producer.recallMessage(topic, receipt.getRecallHandle()).getMessageId().toString();
        }
        return receipt.getMessageId().toString();
    }

    private void orphan(String topic) throws Exception {
        CountDownLatch checked = new CountDownLatch(1);
        Producer producer = CLIENTS.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(view -> {
                write(line(view));
                checked.countDown();
                return TransactionResolution.COMMIT;
            }).build();
        Message message = CLIENTS.newMessageBuilder().setTopic(topic).setTag("paid").setKeys("k1", "k2")
            .setBody("orphan".getBytes(StandardCharsets.UTF_8)).addProperty("amount", "7").build();
        producer.send(message, producer.beginTransaction());
        if (!checked.await(SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the transaction was not checked");
        }
        Thread.sleep(1000); // the decision is on its way
        producer.close();
    }

    private void receive(String topic, String group, String expression, int count) throws Exception {
        try (SimpleConsumer consumer = consumer(topic, group, expression)) {
            long end = System.currentTimeMillis() + SECONDS * 1000;
            for (int found = 0; found < count && System.currentTimeMillis() < end;) {
                for (MessageView view : consumer.receive(count - found, Duration.ofSeconds(15))) {
                    write(line(view));
                    consumer.ack(view);
                    found++;
                }
            }
        }
    }

    private void again(String topic, String group) throws Exception {
        try (SimpleConsumer consumer = consumer(topic, group, "*")) {
            MessageView first = one(consumer);
            write(line(first));
            consumer.changeInvisibleDuration(first, Duration.ofSeconds(1));
            MessageView second = one(consumer);
            write(line(second));
            consumer.ack(second);
        }
    }

    private void abandon(String topic, String group) throws Exception {
        SimpleConsumer consumer = consumer(topic, group, "*");
        MessageView first = one(consumer);
        write(line(first));
        consumer.ack(first);
        write(line(one(consumer)));
        Runtime.getRuntime().halt(0);
    }

    private static MessageView one(SimpleConsumer consumer) throws Exception {
        List<MessageView> found = List.of();
        for (int tries = 0; found.isEmpty() && tries < 12; tries++) {
            found = consumer.receive(1, Duration.ofSeconds(15));
        }
        return found.get(0);
    }

    private SimpleConsumer consumer(String topic, String group, String expression) throws Exception {
        return CLIENTS.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Map.of(topic, filter(expression))).build();
    }

    private void push(String topic, String group, String expression, int count, int failures) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        PushConsumer consumer = CLIENTS.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setSubscriptionExpressions(Map.of(topic, filter(expression)))
            .setMessageListener(view -> {
                write(line(view));
                left.countDown();
                return view.getDeliveryAttempt() > failures ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            }).build();
        left.await(SECONDS, TimeUnit.SECONDS);
        Thread.sleep(500); // the last acknowledgement is on its way
        consumer.close();
    }

    private static FilterExpression filter(String wanted) {
        return wanted.startsWith("sql:") ? new FilterExpression(wanted.substring(4), FilterExpressionType.SQL92)
            : new FilterExpression(wanted, FilterExpressionType.TAG);
    }

    private static Map<String, Object> line(MessageView view) {
        byte[] body = new byte[view.getBody().remaining()];
        view.getBody().get(body);
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", view.getTopic());
        line.put("messageId", view.getMessageId().toString());
        line.put("body", new String(body, StandardCharsets.UTF_8));
        line.put("tag", view.getTag().orElse(null));
        line.put("keys", view.getKeys());
        line.put("group", view.getMessageGroup().orElse(null));
        line.put("attempt", view.getDeliveryAttempt());
        line.put("properties", view.getProperties());
        return line;
    }

    private static synchronized void write(Object value) {
        OUT.println(GSON.toJson(value));
    }
}
