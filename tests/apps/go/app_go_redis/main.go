// go-redis by itself: pipelines, optimistic transactions, subscriptions, streams, scripts, in RESP3.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	. "concord/apps/common"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: Addr()})

	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 500 {
			pipe.Set(ctx, fmt.Sprintf("key:%d", number), number, time.Minute)
		}
		return nil
	})
	Must(err)
	values, err := client.MGet(ctx, "key:0", "key:499", "none").Result()
	Must(err)
	Check(values[0] == "0" && values[1] == "499" && values[2] == nil, "%v", values)
	var cursor uint64
	seen := map[string]bool{}
	for {
		keys, next, err := client.Scan(ctx, cursor, "key:*", 100).Result()
		Must(err)
		for _, key := range keys {
			seen[key] = true
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	Check(len(seen) == 500, "%d of 500 keys", len(seen))

	// Eight that count by WATCH, each again where another was faster.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for counted := 0; counted < 20; {
				err := client.Watch(ctx, func(tx *redis.Tx) error {
					number, err := tx.Get(ctx, "counter").Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						return err
					}
					_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
						pipe.Set(ctx, "counter", number+1, 0)
						return nil
					})
					return err
				}, "counter")
				if err == nil {
					counted++
				} else {
					Check(errors.Is(err, redis.TxFailedErr), "%v", err)
				}
			}
		})
	}
	group.Wait()
	number, err := client.Get(ctx, "counter").Int()
	Check(err == nil && number == 160, "%d of 160: %v", number, err)

	subscription := client.Subscribe(ctx, "news")
	_, err = subscription.Receive(ctx)
	Must(err)
	Must(client.Publish(ctx, "news", "hello").Err())
	message := <-subscription.Channel()
	Check(message.Payload == "hello", "%v", message)
	Must(subscription.Close())

	Must(client.XGroupCreateMkStream(ctx, "stream", "group", "0").Err())
	for number := range 20 {
		Must(client.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: []any{"n", number}}).Err())
	}
	taken := 0
	for taken < 20 {
		read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "group", Consumer: "c", Streams: []string{"stream", ">"}, Count: 7, Block: time.Second,
		}).Result()
		Must(err)
		for _, entry := range read[0].Messages {
			taken++
			Must(client.XAck(ctx, "stream", "group", entry.ID).Err())
		}
	}
	pending, err := client.XPending(ctx, "stream", "group").Result()
	Check(err == nil && pending.Count == 0, "%v: %v", pending, err)

	script := redis.NewScript(`redis.call('INCRBY', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[2])`)
	text, err := script.Run(ctx, client, []string{"sum", "key:7"}, 5).Text()
	Check(err == nil && text == "7", "%q: %v", text, err)

	go func() {
		time.Sleep(100 * time.Millisecond)
		client.RPush(ctx, "queue", "element")
	}()
	popped, err := client.BLPop(ctx, 5*time.Second, "empty", "queue").Result()
	Check(err == nil && popped[1] == "element", "%v: %v", popped, err)
	info, err := client.InfoMap(ctx, "server").Result()
	Check(err == nil && info["Server"]["redis_version"] != "", "%v: %v", info, err)
	Must(client.Close())
}
