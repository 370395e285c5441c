package pyromq.interop;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends the messages of standard input as transactions: property "local" is what the local transaction says, "check" what a
 * check does. Then it answers checks until as many came as messages have a "check", or `seconds` passed.
 */
final class Transacting implements TransactionListener {
    private final CountDownLatch expected;

    private Transacting(long checks) {
        expected = new CountDownLatch((int) checks);
    }

    static void run(String nameServers, String group, int seconds) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (JsonObject line : Lines.read()) {
            messages.add(Lines.message(line));
        }
        Transacting transacting = new Transacting(messages.stream().filter(m -> m.getUserProperty("check") != null).count());
        TransactionMQProducer producer = new TransactionMQProducer(group);
        Lines.reach(producer, nameServers);
        producer.setSendMsgTimeout(30_000); // 3 s as a rule, which a Java on a busy machine takes for its first send
        producer.setTransactionListener(transacting);
        producer.start();
        for (Message message : messages) {
            Lines.sent(producer.sendMessageInTransaction(message, null));
        }
        transacting.expected.await(seconds, TimeUnit.SECONDS);
        TimeUnit.MILLISECONDS.sleep(500); // decisions are sent one-way
        producer.shutdown();
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return state(message.getUserProperty("local"));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        Map<String, Object> line = new TreeMap<>();
        line.put("checked", message.getKeys());
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        Lines.write(line);
        expected.countDown();
        String decision = message.getUserProperty("check");
        return state(decision == null ? "unknown" : decision);
    }

    private static LocalTransactionState state(String decision) {
        switch (decision) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
