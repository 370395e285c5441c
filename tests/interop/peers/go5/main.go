// RocketMQ 5's client for Go: `ENDPOINTS COMMAND ARGUMENT...`. The commands are those of Java's GrpcDriver.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const limit = 100 * time.Second

var (
	endpoints = os.Args[1]
	printing  sync.Mutex
)

func main() {
	rmq.EnableSsl = os.Getenv("PLAIN") == ""
	arguments := os.Args[3:]
	commands := map[string]func([]string) error{
		"send": send, "orphan": orphan, "receive": receive, "again": again, "abandon": abandon, "push": push,
	}
	if err := commands[os.Args[2]](arguments); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0) // the client leaves goroutines behind
}

func config(group string) *rmq.Config {
	account := &credentials.SessionCredentials{
		AccessKey: os.Getenv("ACCESS_KEY"), AccessSecret: os.Getenv("SECRET_KEY"),
	}
	return &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: account}
}

func write(value any) {
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(value)
	fmt.Println(string(text))
}

func line(view *rmq.MessageView) map[string]any {
	return map[string]any{
		"topic": view.GetTopic(), "messageId": view.GetMessageId(), "body": string(view.GetBody()),
		"tag": view.GetTag(), "keys": view.GetKeys(), "group": view.GetMessageGroup(),
		"attempt": view.GetDeliveryAttempt(), "properties": view.GetProperties(),
	}
}

func filter(wanted string) *rmq.FilterExpression {
	if expression, isSQL := strings.CutPrefix(wanted, "sql:"); isSQL {
		return rmq.NewFilterExpressionWithType(expression, rmq.SQL92)
	}
	return rmq.NewFilterExpression(wanted)
}

func message(topic, kind string) *rmq.Message {
	found := &rmq.Message{Topic: topic, Body: []byte(kind)}
	found.SetTag("paid")
	found.SetKeys("k1", "k2")
	found.AddProperty("amount", "7")
	switch strings.Split(kind, "-")[0] {
	case "fifo":
		found.SetMessageGroup("customer-3")
	case "delay":
		found.SetDelayTimestamp(time.Now().Add(3 * time.Second))
	case "large":
		found.Body = make([]byte, 4<<20)
	}
	return found
}

func sendOne(producer rmq.Producer, topic, kind string) (string, error) {
	if kind == "commit" || kind == "rollback" {
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(context.Background(), message(topic, kind), transaction)
		if err != nil {
			return "", err
		}
		if kind == "commit" {
			return receipts[0].MessageID, transaction.Commit()
		}
		return receipts[0].MessageID, transaction.RollBack()
	}
	receipts, err := producer.Send(context.Background(), message(topic, kind))
	if err != nil {
		return "", err
	}
	return receipts[0].MessageID, nil
}

func started(topic string, check func(*rmq.MessageView) rmq.TransactionResolution) (rmq.Producer, error) {
	checker := &rmq.TransactionChecker{Check: check}
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	if err != nil {
		return nil, err
	}
	return producer, producer.Start()
}

func send(arguments []string) error {
	topic, kinds := arguments[0], arguments[1:]
	producer, err := started(topic, func(*rmq.MessageView) rmq.TransactionResolution { return rmq.ROLLBACK })
	if err != nil {
		write(map[string]string{"body": kinds[0], "error": err.Error()})
		return nil
	}
	for _, kind := range kinds {
		id, err := sendOne(producer, topic, kind)
		if err != nil {
			write(map[string]string{"body": kind, "error": err.Error()})
			continue
		}
		write(map[string]string{"body": kind, "messageId": id})
	}
	return producer.GracefulStop()
}

func orphan(arguments []string) error {
	checked := make(chan bool, 16)
	producer, err := started(arguments[0], func(view *rmq.MessageView) rmq.TransactionResolution {
		write(line(view))
		checked <- true
		return rmq.COMMIT
	})
	if err != nil {
		return err
	}
	transaction := producer.BeginTransaction()
	half := message(arguments[0], "orphan")
	if _, err := producer.SendWithTransaction(context.Background(), half, transaction); err != nil {
		return err
	}
	select {
	case <-checked:
	case <-time.After(limit):
		return fmt.Errorf("the transaction was not checked")
	}
	time.Sleep(time.Second) // the decision is on its way
	return producer.GracefulStop()
}

func simple(topic, group, expression string) (rmq.SimpleConsumer, error) {
	consumer, err := rmq.NewSimpleConsumer(config(group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter(expression)}))
	if err != nil {
		return nil, err
	}
	return consumer, consumer.Start()
}

// The client returns an error where nothing was found.
func some(consumer rmq.SimpleConsumer, most int) ([]*rmq.MessageView, error) {
	found, err := consumer.Receive(context.Background(), int32(most), 15*time.Second)
	if status, isStatus := rmq.AsErrRpcStatus(err); isStatus && status.GetCode() == 40401 {
		return nil, nil
	}
	return found, err
}

func receive(arguments []string) error {
	consumer, err := simple(arguments[0], arguments[1], arguments[2])
	if err != nil {
		return err
	}
	count, _ := strconv.Atoi(arguments[3])
	for end := time.Now().Add(limit); count > 0 && time.Now().Before(end); {
		found, err := some(consumer, count)
		if err != nil {
			return err
		}
		for _, view := range found {
			write(line(view))
			if err := consumer.Ack(context.Background(), view); err != nil {
				return err
			}
			count--
		}
	}
	return consumer.GracefulStop()
}

func one(consumer rmq.SimpleConsumer) (*rmq.MessageView, error) {
	for tries := 0; tries < 12; tries++ {
		if found, err := some(consumer, 1); err != nil || len(found) > 0 {
			if err != nil {
				return nil, err
			}
			write(line(found[0]))
			return found[0], nil
		}
	}
	return nil, fmt.Errorf("no message came")
}

func begun(topic, group string) (rmq.SimpleConsumer, *rmq.MessageView, error) {
	consumer, err := simple(topic, group, "*")
	if err != nil {
		return nil, nil, err
	}
	first, err := one(consumer)
	return consumer, first, err
}

func again(arguments []string) error {
	consumer, first, err := begun(arguments[0], arguments[1])
	if err != nil {
		return err
	}
	if err := consumer.ChangeInvisibleDuration(first, time.Second); err != nil {
		return err
	}
	second, err := one(consumer)
	if err != nil {
		return err
	}
	if err := consumer.Ack(context.Background(), second); err != nil {
		return err
	}
	return consumer.GracefulStop()
}

func abandon(arguments []string) error {
	consumer, first, err := begun(arguments[0], arguments[1])
	if err != nil {
		return err
	}
	if err := consumer.Ack(context.Background(), first); err != nil {
		return err
	}
	_, err = one(consumer)
	return err
}

func push(arguments []string) error {
	count, _ := strconv.Atoi(arguments[3])
	failures, _ := strconv.Atoi(arguments[4])
	seen := make(chan bool, 1024)
	listener := &rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
		write(line(view))
		seen <- true
		if int(view.GetDeliveryAttempt()) > failures {
			return rmq.SUCCESS
		}
		return rmq.FAILURE
	}}
	consumer, err := rmq.NewPushConsumer(config(arguments[1]), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{arguments[0]: filter(arguments[2])}),
		rmq.WithPushMessageListener(listener), rmq.WithPushConsumptionThreadCount(4),
		rmq.WithPushMaxCacheMessageCount(1024))
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	end := time.After(limit)
	for ; count > 0; count-- {
		select {
		case <-seen:
		case <-end:
			count = 1
		}
	}
	time.Sleep(500 * time.Millisecond) // the last acknowledgement is on its way
	return consumer.GracefulStop()
}
