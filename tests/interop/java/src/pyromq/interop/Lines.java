package pyromq.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** One JSON object a line: messages to send come in, results and received messages go out. Bodies are Base64. */
final class Lines {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private static final List<String> TIMER_WISHES = List.of("setDeliverTimeMs", "setDelayTimeMs", "setDelayTimeSec");

    private Lines() {
    }

    /** Signs as the account of the system properties accessKey and secretKey; null without them. */
    static RPCHook account() {
        String accessKey = System.getProperty("accessKey");
        if (accessKey == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(accessKey, System.getProperty("secretKey")));
    }

    /** Goes to the name servers, in the namespace and as often as the system properties say, if they do. */
    static void reach(ClientConfig client, String nameServers) {
        client.setNamesrvAddr(nameServers);
        if (System.getProperty("namespace") != null) {
            client.setNamespace(System.getProperty("namespace"));
        }
        Integer interval = Integer.getInteger("pollNameServerInterval");
        if (interval != null) {
            client.setPollNameServerInterval(interval);
        }
    }

    static List<JsonObject> read() throws IOException {
        List<JsonObject> lines = new ArrayList<>();
        BufferedReader reader = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = reader.readLine(); line != null; line = reader.readLine()) {
            lines.add(GSON.fromJson(line, JsonObject.class));
        }
        return lines;
    }

    /** Tags, or after "sql:" an expression. */
    static MessageSelector selector(String wanted) {
        return wanted.startsWith("sql:") ? MessageSelector.bySql(wanted.substring(4)) : MessageSelector.byTag(wanted);
    }

    static synchronized void write(Object value) {
        OUT.println(GSON.toJson(value));
    }

    static Message message(JsonObject line) {
        Message message = new Message(text(line, "topic"), Base64.getDecoder().decode(text(line, "body")));
        if (text(line, "tags") != null) {
            message.setTags(text(line, "tags"));
        }
        if (text(line, "keys") != null) {
            message.setKeys(text(line, "keys"));
        }
        message.setFlag(line.has("flag") ? line.get("flag").getAsInt() : 0);
        if (line.has("delayLevel")) {
            message.setDelayTimeLevel(line.get("delayLevel").getAsInt());
        }
        for (String wish : TIMER_WISHES) {
            if (line.has(wish)) {
                call(message, wish, line.get(wish).getAsLong());
            }
        }
        if (line.has("properties")) {
            for (Map.Entry<String, JsonElement> property : line.getAsJsonObject("properties").entrySet()) {
                message.putUserProperty(property.getKey(), property.getValue().getAsString());
            }
        }
        return message;
    }

    /** Calls what messages of 5.x only have. */
    private static void call(Message message, String method, long argument) {
        try {
            Message.class.getMethod(method, long.class).invoke(message, argument);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    static String text(JsonObject line, String name) {
        return line.has(name) && !line.get(name).isJsonNull() ? line.get(name).getAsString() : null;
    }

    static void sent(SendResult result) {
        Map<String, Object> line = queue(result.getMessageQueue());
        line.put("status", result.getSendStatus().name());
        line.put("messageId", result.getMsgId());
        line.put("offsetMessageId", result.getOffsetMsgId());
        line.put("queueOffset", result.getQueueOffset());
        write(line);
    }

    static void received(MessageExt message) throws Exception {
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("logOffset", message.getCommitLogOffset());
        line.put("messageId", message.getMsgId());
        line.put("offsetMessageId", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bornMs", message.getBornTimestamp());
        line.put("storeMs", message.getStoreTimestamp());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("properties", message.getProperties());
        line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        write(line);
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", queue.getTopic());
        line.put("brokerName", queue.getBrokerName());
        line.put("queueId", queue.getQueueId());
        return line;
    }
}
