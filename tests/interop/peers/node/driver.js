// RocketMQ 5's client for Node: `ENDPOINTS COMMAND ARGUMENT...`. The commands are those of Java's GrpcDriver.
'use strict';
const rocketmq = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const SECONDS = 100;
const QUIET = { info() {}, warn() {}, debug() {}, close() {}, error: console.error };
const [endpoints, command, ...rest] = process.argv.slice(2);
const common = { endpoints, namespace: '', logger: QUIET, sslEnabled: Boolean(process.env.TLS), requestTimeout: 6000 };
if (process.env.ACCESS_KEY) {
  common.sessionCredentials = { accessKey: process.env.ACCESS_KEY, accessSecret: process.env.SECRET_KEY };
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const write = value => console.log(JSON.stringify(value));
const line = view => ({
  topic: view.topic, messageId: view.messageId, body: view.body.toString(), tag: view.tag, keys: view.keys,
  group: view.messageGroup, attempt: view.deliveryAttempt, properties: Object.fromEntries(view.properties),
});
const filter = wanted => wanted.startsWith('sql:')
  ? new rocketmq.FilterExpression(wanted.slice(4), FilterType.SQL) : new rocketmq.FilterExpression(wanted);

function message(topic, kind) {
  const found = { topic, tag: 'paid', keys: [ 'k1', 'k2' ], properties: new Map([[ 'amount', '7' ]]) };
  found.body = kind.startsWith('large') ? Buffer.alloc(4 << 20) : Buffer.from(kind);
  if (kind.startsWith('fifo')) found.messageGroup = 'customer-3';
  if (/^(delay|recall)/.test(kind)) found.deliveryTimestamp = new Date(Date.now() + 3000);
  return found;
}

async function sendOne(producer, topic, kind) {
  if (kind === 'commit' || kind === 'rollback') {
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(message(topic, kind), transaction);
    await transaction[kind]();
    return receipt.messageId;
  }
  const receipt = await producer.send(message(topic, kind));
  return kind === 'recall' ? (await producer.recallMessage(topic, receipt.recallHandle)).messageId : receipt.messageId;
}

async function send(topic, ...kinds) {
  const producer = new rocketmq.Producer({ ...common, checker: { check: async () => TransactionResolution.ROLLBACK } });
  await producer.startup();
  for (const kind of kinds) {
    try {
      write({ body: kind, messageId: await sendOne(producer, topic, kind) });
    } catch (error) {
      write({ body: kind, error: error.message });
    }
  }
  await producer.shutdown();
}

async function orphan(topic) {
  let checked;
  const done = new Promise(resolve => { checked = resolve; });
  const checker = { check: async view => { write(line(view)); checked(); return TransactionResolution.COMMIT; } };
  const producer = new rocketmq.Producer({ ...common, topics: [ topic ], topic, checker });
  await producer.startup();
  await producer.send(message(topic, 'orphan'), producer.beginTransaction());
  await Promise.race([ done, sleep(SECONDS * 1000) ]);
  await sleep(1000); // the decision is on its way
  await producer.shutdown();
}

async function simple(topic, group, expression) {
  const consumer = new rocketmq.SimpleConsumer({
    ...common, consumerGroup: group, subscriptions: new Map([[ topic, filter(expression) ]]), awaitDuration: 5000,
  });
  await consumer.startup();
  return consumer;
}

async function receive(topic, group, expression, count) {
  const consumer = await simple(topic, group, expression);
  const end = Date.now() + SECONDS * 1000;
  for (let found = 0; found < Number(count) && Date.now() < end;) {
    for (const view of await consumer.receive(Number(count) - found, 15000)) {
      write(line(view));
      await consumer.ack(view);
      found++;
    }
  }
  await consumer.shutdown();
}

async function one(consumer) {
  for (let tries = 0; tries < 12; tries++) {
    const found = await consumer.receive(1, 15000);
    if (found.length) return found[0];
  }
  throw new Error('no message came');
}

async function again(topic, group) {
  const consumer = await simple(topic, group, '*');
  const first = await one(consumer);
  write(line(first));
  await consumer.changeInvisibleDuration(first, 1000);
  const second = await one(consumer);
  write(line(second));
  await consumer.ack(second);
  await consumer.shutdown();
}

async function abandon(topic, group) {
  const consumer = await simple(topic, group, '*');
  const first = await one(consumer);
  write(line(first));
  await consumer.ack(first);
  write(line(await one(consumer)));
}

async function push(topic, group, expression, count, failures) {
  let left = Number(count);
  let ended;
  const done = new Promise(resolve => { ended = resolve; });
  const consume = async view => {
    write(line(view));
    if (--left === 0) ended();
    return view.deliveryAttempt > Number(failures) ? rocketmq.ConsumeResult.SUCCESS : rocketmq.ConsumeResult.FAILURE;
  };
  const consumer = new rocketmq.PushConsumer({
    ...common, consumerGroup: group, subscriptions: new Map([[ topic, filter(expression) ]]), messageListener: { consume },
  });
  await consumer.startup();
  await Promise.race([ done, sleep(SECONDS * 1000) ]);
  await sleep(500); // the last acknowledgement is on its way
  await consumer.shutdown();
}

({ send, orphan, receive, again, abandon, push })[command](...rest).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
