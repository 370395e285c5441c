// Calls of RocketMQ 5's protocol at a proxy: `ADDRESS send|receive TOPIC SECONDS`. Prints messages a second.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	inFlight  = 64 // sends; all on one connection, as a client has it
	receivers = 8  // receives of 32 messages, each followed by its acknowledgement
	batch     = 32
)

func main() {
	address, kind := os.Args[1], os.Args[2]
	topic := &v2.Resource{Name: os.Args[3]}
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	client := v2.NewMessagingServiceClient(connection)
	base := metadata.AppendToOutgoingContext(context.Background(), "x-mq-client-id", "load@1@0@a",
		"x-mq-language", "GO", "x-mq-protocol", "v2", "x-mq-client-version", "5.1.3", "x-mq-namespace", "",
		"x-mq-date-time", "20261123T145959Z", "x-mq-request-id", "7a9cbd9a-53f6-4ef7-a8c6-3fba5f2e1c11")
	work, workers := send, inFlight
	if kind == "receive" {
		work, workers = receive, receivers
		hello(base, client, topic)
	}
	var count, last atomic.Int64 // last: nanoseconds from the begin to the last message
	begin := time.Now()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	var all sync.WaitGroup
	for number := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(end) {
				found := work(base, client, topic, number)
				if found == 0 { // the topic is empty
					return
				}
				count.Add(found)
				last.Store(int64(time.Since(begin)))
			}
		}()
	}
	all.Wait()
	fmt.Printf("%.0f\n", float64(count.Load())/time.Duration(last.Load()).Seconds())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var (
	group  = &v2.Resource{Name: "load"}
	body   = make([]byte, 200)
	number atomic.Int64
)

// Without its settings the genuine proxy refuses a consumer's receives.
func hello(base context.Context, client v2.MessagingServiceClient, topic *v2.Resource) {
	stream, err := client.Telemetry(base)
	check(err)
	kind := v2.ClientType_SIMPLE_CONSUMER
	all := &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}
	subscription := &v2.Subscription{Group: group,
		Subscriptions: []*v2.SubscriptionEntry{{Topic: topic, Expression: all}}}
	settings := &v2.Settings{ClientType: &kind, PubSub: &v2.Settings_Subscription{Subscription: subscription}}
	check(stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: settings}}))
	_, err = stream.Recv()
	check(err)
}

func send(base context.Context, client v2.MessagingServiceClient, topic *v2.Resource, _ int) int64 {
	limited, done := context.WithTimeout(base, 10*time.Second)
	defer done()
	system := &v2.SystemProperties{MessageId: fmt.Sprintf("01%032X", number.Add(1)), MessageType: v2.MessageType_NORMAL}
	messages := []*v2.Message{{Topic: topic, SystemProperties: system, Body: body}}
	answer, err := client.SendMessage(limited, &v2.SendMessageRequest{Messages: messages})
	check(err)
	if answer.Status.Code != v2.Code_OK {
		check(fmt.Errorf("%s", answer.Status.Message))
	}
	return 1
}

func receive(base context.Context, client v2.MessagingServiceClient, topic *v2.Resource, _ int) int64 {
	limited, done := context.WithTimeout(base, 10*time.Second)
	defer done()
	queue := &v2.MessageQueue{Topic: topic, Broker: &v2.Broker{Name: "broker-a"}, Permission: v2.Permission_READ}
	stream, err := client.ReceiveMessage(limited, &v2.ReceiveMessageRequest{Group: group, MessageQueue: queue,
		FilterExpression: &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}, BatchSize: batch,
		InvisibleDuration: durationpb.New(60 * time.Second), LongPollingTimeout: durationpb.New(5 * time.Second)})
	check(err)
	entries := []*v2.AckMessageEntry{}
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			break
		}
		check(err)
		if message := answer.GetMessage(); message != nil {
			system := message.SystemProperties
			entries = append(entries,
				&v2.AckMessageEntry{MessageId: system.MessageId, ReceiptHandle: system.GetReceiptHandle()})
		}
	}
	if os.Getenv("ACK") != "" && len(entries) > 0 {
		_, err = client.AckMessage(limited, &v2.AckMessageRequest{Group: group, Topic: topic, Entries: entries})
		check(err)
	}
	return int64(len(entries))
}
