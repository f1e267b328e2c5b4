import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.*;
import org.redisson.config.Config;

/** Redisson: locks with their watchdog, semaphores, latches, limiters, queues, maps, topics. */
class app_redisson {
    static void check(boolean ok, String what) {
        if (!ok) throw new IllegalStateException("Error: " + what);
    }

    static void each(int threads, Callable<Void> body) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Void>> all = new ArrayList<>();
        for (int n = 0; n < threads; n++) all.add(pool.submit(body));
        for (Future<Void> one : all) one.get();
        pool.shutdown();
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            run();
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        // Threads that still wait do not hold it up.
        System.exit(status);
    }

    static void run() throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(1500);
        config.useSingleServer().setAddress("redis://" + System.getenv("REDIS_HOST") + ":" + System.getenv("REDIS_PORT"));
        RedissonClient client = Redisson.create(config);

        AtomicInteger held = new AtomicInteger();
        int[] counted = {0};
        each(8, () -> {
            RLock lock = client.getLock("lock");
            for (int n = 0; n < 15; n++) {
                lock.lock();
                lock.lock();
                check(held.incrementAndGet() == 1, "two hold the lock");
                counted[0]++;
                held.decrementAndGet();
                lock.unlock();
                lock.unlock();
            }
            return null;
        });
        check(counted[0] == 120, counted[0] + " of 120");

        // The watchdog keeps a lock that is held for longer than its time.
        RLock kept = client.getLock("kept");
        kept.lock();
        Thread.sleep(2500);
        Future<Boolean> other = Executors.newSingleThreadExecutor().submit(() -> client.getLock("kept").tryLock());
        check(!other.get(), "a lock whose holder lives is over");
        kept.unlock();
        RLock fair = client.getFairLock("fair");
        fair.lock(5, TimeUnit.SECONDS);
        fair.unlock();
        RReadWriteLock both = client.getReadWriteLock("both");
        both.readLock().lock();
        Future<Boolean> reads = Executors.newSingleThreadExecutor().submit(() -> both.readLock().tryLock() && !both.writeLock().tryLock());
        check(reads.get(), "readers and writers");
        both.readLock().unlock();

        RSemaphore semaphore = client.getSemaphore("semaphore");
        check(semaphore.trySetPermits(2) && semaphore.tryAcquire(2) && !semaphore.tryAcquire(), "semaphore");
        semaphore.release(2);
        RCountDownLatch latch = client.getCountDownLatch("latch");
        latch.trySetCount(3);
        each(3, () -> { client.getCountDownLatch("latch").countDown(); return null; });
        check(latch.await(5, TimeUnit.SECONDS), "latch");
        RRateLimiter limiter = client.getRateLimiter("limiter");
        limiter.trySetRate(RateType.OVERALL, 3, java.time.Duration.ofSeconds(30));
        check(limiter.tryAcquire(3) && !limiter.tryAcquire(), "limiter");

        RBlockingQueue<String> queue = client.getBlockingQueue("queue");
        Executors.newSingleThreadScheduledExecutor().schedule(() -> { queue.add("element"); }, 200, TimeUnit.MILLISECONDS);
        check("element".equals(queue.poll(5, TimeUnit.SECONDS)), "queue");
        RDelayedQueue<String> delayed = client.getDelayedQueue(queue);
        delayed.offer("later", 300, TimeUnit.MILLISECONDS);
        check("later".equals(queue.poll(10, TimeUnit.SECONDS)), "delayed queue");
        delayed.destroy();

        RMapCache<String, Integer> map = client.getMapCache("map");
        map.put("a", 1, 1, TimeUnit.HOURS);
        check(map.putIfAbsent("a", 2) == 1 && map.replace("a", 6) == 1 && map.get("a") == 6 && map.size() == 1, "map");
        RLocalCachedMap<String, Integer> near = client.getLocalCachedMap(org.redisson.api.options.LocalCachedMapOptions.<String, Integer>name("near"));
        near.put("x", 7);
        check(near.get("x") == 7, "near cache");
        RScoredSortedSet<String> sorted = client.getScoredSortedSet("sorted");
        sorted.add(2, "two");
        sorted.add(1, "one");
        check("one".equals(sorted.pollFirst()), "sorted set");
        RBatch batch = client.createBatch(BatchOptions.defaults().executionMode(BatchOptions.ExecutionMode.REDIS_WRITE_ATOMIC));
        for (int n = 0; n < 50; n++) batch.getAtomicLong("sum").addAndGetAsync(2);
        check(batch.execute().getResponses().size() == 50 && client.getAtomicLong("sum").get() == 100, "batch");

        CountDownLatch heard = new CountDownLatch(1);
        RTopic topic = client.getTopic("topic");
        topic.addListener(String.class, (channel, text) -> { if (text.equals("hello")) heard.countDown(); });
        topic.publish("hello");
        check(heard.await(5, TimeUnit.SECONDS), "topic");
        RStream<String, String> stream = client.getStream("stream");
        stream.createGroup(org.redisson.api.stream.StreamCreateGroupArgs.name("group").makeStream());
        stream.add(org.redisson.api.stream.StreamAddArgs.entry("k", "v"));
        check(stream.readGroup("group", "c", org.redisson.api.stream.StreamReadGroupArgs.neverDelivered()).size() == 1, "stream");
        client.shutdown();
    }
}
