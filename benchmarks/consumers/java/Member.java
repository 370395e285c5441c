import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The genuine push consumer as a member of a group: `MODE NAMESRV TOPIC GROUP orderly|concurrent BATCH WORK-MS`.
 *  Modes `all` and `every`, and the lines printed, are those of `member.py`. */
public final class Member {
    private static final int MARK = 1000;
    private static final AtomicLong COUNT = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        boolean all = arguments[0].equals("all");
        long workMs = Long.parseLong(arguments[6]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(arguments[5]));
        consumer.subscribe(arguments[2], "*");
        if (arguments[4].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                take(all, workMs, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                take(all, workMs, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            say("closing " + System.nanoTime());
            consumer.shutdown();
            say("closed " + System.nanoTime());
        }));
        say("starting " + System.nanoTime());
        consumer.start();
        say("ready " + System.nanoTime());
        Thread.currentThread().join();
    }

    private static void take(boolean all, long workMs, List<MessageExt> messages) {
        if (all) {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8).split(" ", 2)[0];
                say("message " + System.nanoTime() + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + body);
            }
        } else {
            long count = COUNT.addAndGet(messages.size());
            if (count / MARK != (count - messages.size()) / MARK) {
                say("count " + System.nanoTime() + " " + count);
            }
        }
        if (workMs > 0) {
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
