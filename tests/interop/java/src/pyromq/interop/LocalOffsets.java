package pyromq.interop;

import com.google.gson.JsonObject;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

/** Tells a topic's offsets in a broadcast consumer's file, then stores those of the lines. Needs no server. */
final class LocalOffsets {
    private LocalOffsets() {
    }

    static void run(String topic, String clientId, String group) throws Exception {
        LocalFileOffsetStore store = new LocalFileOffsetStore(new MQClientInstance(new ClientConfig(), 0, clientId), group);
        store.load();
        for (Map.Entry<MessageQueue, Long> entry : store.cloneOffsetTable(topic).entrySet()) {
            Map<String, Object> line = Lines.queue(entry.getKey());
            line.put("offset", entry.getValue());
            Lines.write(line);
        }
        Set<MessageQueue> queues = new HashSet<>();
        for (JsonObject line : Lines.read()) {
            MessageQueue queue =
                new MessageQueue(topic, Lines.text(line, "brokerName"), line.get("queueId").getAsInt());
            store.updateOffset(queue, line.get("offset").getAsLong(), false);
            queues.add(queue);
        }
        store.persistAll(queues);
    }
}
