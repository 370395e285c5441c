package pyromq.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Reads a topic with the push consumer, concurrently or in order, until `count` messages came or `seconds` passed. */
final class Pushing {
    private final CountDownLatch missing;

    private Pushing(int count) {
        missing = new CountDownLatch(count);
    }

    static void run(String nameServers, String way, String[] topicGroupTags, int count, int seconds) throws Exception {
        boolean isTraced = topicGroupTags[1].startsWith("traced");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            topicGroupTags[1], Lines.account(), new AllocateMessageQueueAveragely(), isTraced, null);
        Lines.reach(consumer, nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topicGroupTags[0], Lines.selector(topicGroupTags[2]));
        Pushing pushing = new Pushing(count);
        if (way.equals("push-pop")) { // by its name, since client 4 lacks the method
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (way.equals("push-orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                pushing.take(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                pushing.take(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        try (Traces traces = isTraced ? new Traces(nameServers) : null) {
            consumer.start();
            pushing.missing.await(seconds, TimeUnit.SECONDS);
            TimeUnit.MILLISECONDS.sleep(500); // what arrives now came twice
            if (isTraced) {
                traces.await();
            }
            consumer.shutdown(); // commits
        }
    }

    private void take(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            try {
                Lines.received(message);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            missing.countDown();
        }
    }
}
