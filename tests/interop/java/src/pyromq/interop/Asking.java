package pyromq.interop;

import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The administrator's questions. `var` where the class moved to another package between 4.x and 5.x. */
final class Asking {
    private final DefaultMQAdminExt admin;

    private Asking(DefaultMQAdminExt admin) {
        this.admin = admin;
    }

    static void run(String nameServers, String question, String[] arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Lines.account());
        admin.setNamesrvAddr(nameServers);
        admin.start();
        try {
            new Asking(admin).ask(question, arguments);
        } finally {
            admin.shutdown();
        }
    }

    private void ask(String question, String[] arguments) throws Exception {
        switch (question) {
            case "create-topic":
                createTopic(arguments[0], Integer.parseInt(arguments[1]));
                break;
            case "topics":
                Lines.write(admin.fetchAllTopicList().getTopicList());
                break;
            case "cluster":
                cluster();
                break;
            case "route":
                route(arguments[0]);
                break;
            case "topic-stats":
                topicStats(arguments[0]);
                break;
            case "group-stats":
                groupStats(arguments[0]);
                break;
            case "view":
                Lines.received(admin.viewMessage(arguments[0], arguments[1]));
                break;
            case "query-key":
                for (MessageExt message : admin.queryMessage(arguments[0], arguments[1], 32, 0, Long.MAX_VALUE).getMessageList()) {
                    Lines.received(message);
                }
                break;
            case "search-offset":
                MessageQueue queue = new MessageQueue(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
                Lines.write(Map.of("offset", admin.searchOffset(queue, Long.parseLong(arguments[3]))));
                break;
            case "reset-offset":
                admin.resetOffsetByTimestampOld(arguments[1], arguments[0], Long.parseLong(arguments[2]), true);
                break;
            default:
                throw new IllegalArgumentException("unknown question: " + question);
        }
    }

    private void createTopic(String name, int queues) throws Exception {
        TopicConfig topic = new TopicConfig(name);
        topic.setReadQueueNums(queues);
        topic.setWriteQueueNums(queues);
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), topic);
        }
    }

    private void cluster() throws Exception {
        var cluster = admin.examineBrokerClusterInfo();
        Map<String, Object> line = new TreeMap<>();
        line.put("clusters", cluster.getClusterAddrTable());
        Map<String, Object> brokers = new TreeMap<>();
        cluster.getBrokerAddrTable().forEach((name, broker) -> brokers.put(name, broker.getBrokerAddrs()));
        line.put("brokers", brokers);
        Lines.write(line);
    }

    private void route(String topic) throws Exception {
        for (var queues : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
            Map<String, Object> line = new TreeMap<>();
            line.put("brokerName", queues.getBrokerName());
            line.put("readQueues", queues.getReadQueueNums());
            line.put("writeQueues", queues.getWriteQueueNums());
            line.put("permission", queues.getPerm());
            Lines.write(line);
        }
    }

    private void topicStats(String topic) throws Exception {
        for (var entry : admin.examineTopicStats(topic).getOffsetTable().entrySet()) {
            Map<String, Object> line = Lines.queue(entry.getKey());
            line.put("min", entry.getValue().getMinOffset());
            line.put("max", entry.getValue().getMaxOffset());
            line.put("lastStoreMs", entry.getValue().getLastUpdateTimestamp());
            Lines.write(line);
        }
    }

    private void groupStats(String group) throws Exception {
        for (var entry : admin.examineConsumeStats(group).getOffsetTable().entrySet()) {
            Map<String, Object> line = Lines.queue(entry.getKey());
            line.put("brokerOffset", entry.getValue().getBrokerOffset());
            line.put("consumerOffset", entry.getValue().getConsumerOffset());
            Lines.write(line);
        }
    }
}
