package pyromq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Shares queues as each line says: `strategy`, `member`, `queues`, `members` and what the strategy needs. No server. */
final class Assigning {
    private Assigning() {
    }

    static void run() throws Exception {
        for (JsonObject line : Lines.read()) {
            Lines.write(share(line));
        }
    }

    private static Map<String, Object> share(JsonObject line) {
        try {
            List<MessageQueue> share = strategy(Lines.text(line, "strategy"), line)
                .allocate("group", Lines.text(line, "member"), queues(line, "queues"), texts(line, "members"));
            return Collections.singletonMap("share", share.stream().map(Assigning::text).collect(Collectors.toList()));
        } catch (IllegalArgumentException error) {
            return Collections.singletonMap("error", error.getMessage());
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, JsonObject line) {
        switch (name) {
            case "averaging":
                return new AllocateMessageQueueAveragely();
            case "circular":
                return new AllocateMessageQueueAveragelyByCircle();
            case "configured":
                AllocateMessageQueueByConfig configured = new AllocateMessageQueueByConfig();
                configured.setMessageQueueList(queues(line, "configured"));
                return configured;
            case "machine-room":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(texts(line, "rooms")));
                return rooms;
            case "consistent-hash":
                return new AllocateMessageQueueConsistentHash(line.get("virtualNodes").getAsInt());
            case "nearby":
                return new AllocateMachineRoomNearby(strategy(Lines.text(line, "inner"), line), new Prefix());
            default:
                throw new IllegalStateException("unknown strategy " + name);
        }
    }

    private static List<String> texts(JsonObject line, String name) {
        List<String> texts = new ArrayList<>();
        for (JsonElement text : line.getAsJsonArray(name)) {
            texts.add(text.getAsString());
        }
        return texts;
    }

    /** A queue is written TOPIC/BROKER/ID. */
    private static List<MessageQueue> queues(JsonObject line, String name) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String text : texts(line, name)) {
            String[] parts = text.split("/");
            queues.add(new MessageQueue(parts[0], parts[1], Integer.parseInt(parts[2])));
        }
        return queues;
    }

    private static String text(MessageQueue queue) {
        return queue.getTopic() + "/" + queue.getBrokerName() + "/" + queue.getQueueId();
    }

    /** The room is what stands before the first `@`; a name without one has no room. */
    private static final class Prefix implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return room(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return room(clientId);
        }

        private static String room(String name) {
            return name.substring(0, Math.max(0, name.indexOf('@')));
        }
    }
}
