package pyromq.interop;

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Asks by messages and waits for their replies; or replies to what others ask: with "re: " before the question. */
final class Requesting {
    private static final long REPLY_MS = 30_000;

    private final DefaultMQProducer producer;

    private Requesting(DefaultMQProducer producer) {
        this.producer = producer;
    }

    static void request(String nameServers, String group) throws Exception {
        DefaultMQProducer producer = producer(nameServers, group);
        for (JsonObject line : Lines.read()) {
            Lines.received((MessageExt) producer.request(Lines.message(line), REPLY_MS));
        }
        producer.shutdown();
    }

    static void reply(String nameServers, String topic, String group, int count, int seconds) throws Exception {
        Requesting requesting = new Requesting(producer(nameServers, group + "-replies"));
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            requesting.reply(messages);
            messages.forEach(message -> missing.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        missing.await(seconds, TimeUnit.SECONDS);
        TimeUnit.MILLISECONDS.sleep(500);
        consumer.shutdown();
        requesting.producer.shutdown();
    }

    private void reply(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            try {
                String question = new String(message.getBody(), StandardCharsets.UTF_8);
                Message reply = MessageUtil.createReplyMessage(message, ("re: " + question).getBytes(StandardCharsets.UTF_8));
                Lines.sent(producer.send(reply, 10_000));
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static DefaultMQProducer producer(String nameServers, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.start();
        return producer;
    }
}
