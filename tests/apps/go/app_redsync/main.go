// Locks by redsync: who holds one is alone, others get it when it is released or over.
package main

import (
	"context"
	"sync"
	"time"

	. "concord/apps/common"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: Addr()})
	locks := redsync.New(goredis.NewPool(client))

	var group sync.WaitGroup
	held, counted := 0, 0
	for range 8 {
		group.Go(func() {
			for range 20 {
				mutex := locks.NewMutex("lock", redsync.WithTries(10_000), redsync.WithRetryDelay(2*time.Millisecond))
				Must(mutex.LockContext(ctx))
				held++
				Check(held == 1, "%d hold the lock", held)
				counted++
				held--
				ok, err := mutex.Unlock()
				Check(ok && err == nil, "unlock: %v", err)
			}
		})
	}
	group.Wait()
	Check(counted == 160, "%d of 160", counted)

	first := locks.NewMutex("short", redsync.WithExpiry(300*time.Millisecond), redsync.WithTries(1))
	second := locks.NewMutex("short", redsync.WithExpiry(time.Second), redsync.WithTries(1))
	Must(first.Lock())
	Check(second.TryLock() != nil, "two hold the lock")
	time.Sleep(150 * time.Millisecond)
	ok, err := first.Extend()
	Check(ok && err == nil, "extend: %v", err)
	time.Sleep(200 * time.Millisecond)
	Check(second.TryLock() != nil, "the extended lock is over")
	time.Sleep(200 * time.Millisecond)
	Must(second.TryLock())
	ok, _ = first.Unlock()
	Check(!ok, "a lock that is over was released")
	ok, _ = first.Valid()
	Check(!ok, "a lock that is over is valid")
	ok, err = second.Unlock()
	Check(ok && err == nil, "unlock: %v", err)
}
