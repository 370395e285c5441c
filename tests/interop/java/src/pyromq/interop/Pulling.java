package pyromq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads a topic with the two pull consumers of the client and commits what was read. */
final class Pulling {
    private Pulling() {
    }

    /** Every queue from the group's committed offset (or the first message) to its end; then one line a queue. */
    static void run(String nameServers, String topic, String group, String tags) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, Lines.account());
        Lines.reach(consumer, nameServers);
        consumer.start();
        try {
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
            Collections.sort(queues);
            for (MessageQueue queue : queues) {
                drain(consumer, queue, tags);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void drain(DefaultMQPullConsumer consumer, MessageQueue queue, String tags) throws Exception {
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        long committed = consumer.fetchConsumeOffset(queue, true);
        long next = Math.max(committed, min);
        while (next < max) {
            PullResult result = consumer.pull(queue, tags, next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    Lines.received(message);
                }
            }
            if (result.getNextBeginOffset() <= next) {
                throw new IllegalStateException(queue + " at " + next + " gives " + result);
            }
            next = result.getNextBeginOffset();
        }
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, next, false);
        Map<String, Object> line = Lines.queue(queue);
        line.put("min", min);
        line.put("max", max);
        line.put("committed", committed);
        Lines.write(line);
    }

    /** Subscribes and polls until `count` messages came or nothing new for `seconds`. */
    static void lite(String nameServers, String topic, String group, int count, int seconds) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, Lines.account());
        Lines.reach(consumer, nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            long deadline = System.nanoTime() + seconds * 1_000_000_000L;
            int received = 0;
            while (received < count && System.nanoTime() < deadline) {
                for (MessageExt message : consumer.poll(500)) {
                    Lines.received(message);
                    received++;
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }
}
