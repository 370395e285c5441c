package pyromq.interop;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends numbered messages with the client's default settings for a time; each outcome comes out with its time. */
final class Loading {
    private static final long PAUSE_MS = 10;

    private final DefaultMQProducer producer;
    private final String topic;
    private final long end;

    private Loading(DefaultMQProducer producer, String topic, int seconds) {
        this.producer = producer;
        this.topic = topic;
        end = System.currentTimeMillis() + TimeUnit.SECONDS.toMillis(seconds);
    }

    static void run(String nameServers, String topic, String group, int seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, Lines.account());
        Lines.reach(producer, nameServers);
        producer.start();
        Loading loading = new Loading(producer, topic, seconds);
        Thread waits = new Thread(() -> loading.send("sync"));
        Thread goesOn = new Thread(() -> loading.send("async"));
        waits.start();
        goesOn.start();
        waits.join();
        goesOn.join();
        TimeUnit.SECONDS.sleep(5); // the last outcomes
    }

    private void send(String way) {
        for (int number = 0; System.currentTimeMillis() < end; number++) {
            String name = way + "-" + number;
            try {
                Message message = new Message(topic, name.getBytes());
                if (way.equals("sync")) {
                    write(name, producer.send(message).getSendStatus().name(), null);
                } else {
                    producer.send(message, new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            write(name, result.getSendStatus().name(), null);
                        }

                        @Override
                        public void onException(Throwable error) {
                            write(name, null, error);
                        }
                    });
                }
            } catch (Exception error) {
                write(name, null, error);
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(PAUSE_MS));
        }
    }

    private static void write(String name, String status, Throwable error) {
        Map<String, Object> line = new TreeMap<>();
        line.put("name", name);
        line.put("atMs", System.currentTimeMillis());
        line.put("status", status);
        line.put("error", error == null ? null : error.toString());
        Lines.write(line);
    }
}
