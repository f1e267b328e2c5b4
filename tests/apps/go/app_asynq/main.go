// A queue by asynq: tasks now and later, retries, unique ones, a queue that is inspected.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	. "concord/apps/common"

	"github.com/hibiken/asynq"
)

func main() {
	server := asynq.RedisClientOpt{Addr: Addr()}
	client := asynq.NewClient(server)
	var lock sync.Mutex
	done, failures := map[string]int{}, 0

	mux := asynq.NewServeMux()
	mux.HandleFunc("count", func(_ context.Context, task *asynq.Task) error {
		lock.Lock()
		defer lock.Unlock()
		done[string(task.Payload())]++
		return nil
	})
	mux.HandleFunc("fails", func(_ context.Context, task *asynq.Task) error {
		lock.Lock()
		defer lock.Unlock()
		if failures++; failures < 3 {
			return errors.New("not yet")
		}
		done["failed"]++
		return nil
	})
	for number := range 200 {
		_, err := client.Enqueue(asynq.NewTask("count", fmt.Appendf(nil, "%d", number)))
		Must(err)
	}
	_, err := client.Enqueue(asynq.NewTask("count", []byte("later")), asynq.ProcessIn(time.Second))
	Must(err)
	_, err = client.Enqueue(asynq.NewTask("fails", nil), asynq.MaxRetry(5), asynq.Queue("critical"))
	Must(err)
	once := asynq.NewTask("count", []byte("once"))
	_, err = client.Enqueue(once, asynq.Unique(time.Minute))
	Must(err)
	_, err = client.Enqueue(once, asynq.Unique(time.Minute))
	Check(errors.Is(err, asynq.ErrDuplicateTask), "a unique task came twice: %v", err)

	inspector := asynq.NewInspector(server)
	info, err := inspector.GetQueueInfo("default")
	Must(err)
	Check(info.Pending == 201 && info.Scheduled == 1, "%d pending, %d scheduled", info.Pending, info.Scheduled)

	workers := asynq.NewServer(server, asynq.Config{
		Concurrency:              8,
		Queues:                   map[string]int{"critical": 2, "default": 1},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 100 * time.Millisecond },
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		LogLevel:                 asynq.ErrorLevel,
	})
	Must(workers.Start(mux))
	until := time.Now().Add(60 * time.Second)
	for isDone := false; !isDone; time.Sleep(20 * time.Millisecond) {
		lock.Lock()
		isDone = len(done) == 203
		lock.Unlock()
		Check(time.Now().Before(until), "%d of 203 after a minute", len(done))
	}
	workers.Shutdown()
	for name, times := range done {
		Check(times == 1, "%s ran %d times", name, times)
	}
	Check(failures == 3, "%d tries", failures)
	Must(client.Close())
}
