package pyromq.interop;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/** Sends the messages of standard input in one of the client's ways; the results come out in the same order. */
final class Sending {
    private final DefaultMQProducer producer;

    private Sending(DefaultMQProducer producer) {
        this.producer = producer;
    }

    static void run(String nameServers, String way, String group) throws Exception {
        boolean isTraced = way.equals("traced");
        DefaultMQProducer producer = new DefaultMQProducer(group, Lines.account(), isTraced, null);
        Lines.reach(producer, nameServers);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        try (Traces traces = isTraced ? new Traces(nameServers) : null) {
            new Sending(producer).send(way, Lines.read());
            if (isTraced) {
                traces.await();
            }
        } finally {
            producer.shutdown();
        }
    }

    private void send(String way, List<JsonObject> lines) throws Exception {
        switch (way) {
            case "sync":
            case "traced":
                for (JsonObject line : lines) {
                    Lines.sent(producer.send(Lines.message(line)));
                }
                break;
            case "recalled": // by 5.x: taken back before they are due
                for (JsonObject line : lines) {
                    SendResult sent = producer.send(Lines.message(line));
                    Lines.sent(sent);
                    String handle = (String) SendResult.class.getMethod("getRecallHandle").invoke(sent);
                    DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                        .invoke(producer, Lines.text(line, "topic"), handle);
                }
                break;
            case "async":
                sendAsync(lines);
                break;
            case "oneway":
                for (JsonObject line : lines) {
                    producer.sendOneway(Lines.message(line));
                }
                break;
            case "batch":
                List<Message> messages = new ArrayList<>();
                lines.forEach(line -> messages.add(Lines.message(line)));
                Lines.sent(producer.send(messages));
                break;
            case "ordered":
                for (JsonObject line : lines) {
                    Lines.sent(producer.send(Lines.message(line), new SelectMessageQueueByHash(), Lines.text(line, "order")));
                }
                break;
            default:
                throw new IllegalArgumentException("unknown way of sending: " + way);
        }
    }

    private void sendAsync(List<JsonObject> lines) throws Exception {
        List<CompletableFuture<SendResult>> results = new ArrayList<>();
        for (JsonObject line : lines) {
            CompletableFuture<SendResult> future = new CompletableFuture<>();
            results.add(future);
            producer.send(Lines.message(line), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    future.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    future.completeExceptionally(error);
                }
            });
        }
        for (CompletableFuture<SendResult> result : results) {
            Lines.sent(result.get());
        }
    }
}
