package pyromq.interop;

import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/** The topic of traces: a client that ends sooner than its traces are stored loses them (AsyncTraceDispatcher.shutdown). */
final class Traces implements AutoCloseable {
    private static final String TOPIC = "RMQ_SYS_TRACE_TOPIC";
    private static final long COLLECTED_MS = 1_000; // the client collects them for 600 ms
    private static final long PATIENCE_MS = 20_000;

    private final DefaultMQProducer watching;
    private final long before;

    Traces(String nameServers) throws Exception {
        watching = new DefaultMQProducer("watches-traces", Lines.account());
        watching.setNamesrvAddr(nameServers);
        watching.start();
        before = stored();
    }

    /** Wait until there are new ones, and then none for as long as a client collects them. */
    void await() throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        long seen = before;
        long since = System.currentTimeMillis();
        while (System.currentTimeMillis() < end) {
            long now = stored();
            if (now > seen) {
                seen = now;
                since = System.currentTimeMillis();
            } else if (seen > before && System.currentTimeMillis() - since > COLLECTED_MS) {
                return;
            }
            TimeUnit.MILLISECONDS.sleep(50);
        }
    }

    @Override
    public void close() {
        watching.shutdown();
    }

    private long stored() throws Exception {
        long sum = 0;
        try {
            for (MessageQueue queue : watching.fetchPublishMessageQueues(TOPIC)) {
                sum += watching.maxOffset(queue);
            }
        } catch (MQClientException error) {
            return 0; // no traces, no topic
        }
        return sum;
    }
}
