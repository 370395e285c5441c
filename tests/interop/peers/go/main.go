// The Go client behind a few verbs, one word of output a line.
//
//	send TOPIC COUNT       sends bodies body-0, body-1, ... and prints "sent" for each
//	consume TOPIC COUNT    prints the bodies of so many messages of a group of its own, from the first one on
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var servers = []string{os.Getenv("NAME_SERVER")}
var account = primitive.Credentials{AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func send(topic string, count int) {
	options := []producer.Option{producer.WithNameServer(servers), producer.WithGroupName("go-producer"), producer.WithRetry(0)}
	if account.AccessKey != "" {
		options = append(options, producer.WithCredentials(account))
	}
	sender, err := producer.NewDefaultProducer(append(options, producerTls()...)...)
	check(err)
	check(sender.Start())
	for number := 0; number < count; number++ {
		_, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(fmt.Sprintf("body-%d", number))))
		check(err)
		fmt.Println("sent")
	}
}

func consume(topic string, count int) {
	options := []consumer.Option{
		consumer.WithNameServer(servers),
		consumer.WithGroupName("go-" + topic),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	if account.AccessKey != "" {
		options = append(options, consumer.WithCredentials(account))
	}
	reader, err := consumer.NewPushConsumer(append(options, consumerTls()...)...)
	check(err)
	came := make(chan string, count)
	check(reader.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			came <- string(message.Body)
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(reader.Start())
	for number := 0; number < count; number++ {
		fmt.Println(<-came)
	}
}

func main() {
	rlog.SetLogLevel("error") // goes to standard error
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	switch os.Args[1] {
	case "send":
		send(os.Args[2], count)
	case "consume":
		consume(os.Args[2], count)
	}
}
