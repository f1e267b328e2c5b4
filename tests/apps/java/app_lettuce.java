import io.lettuce.core.*;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.support.caching.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;

/** Lettuce (Spring Data Redis stands on it): RESP3, asynchronous commands, transactions, a cache of the client's. */
class app_lettuce {
    static void check(boolean ok, String what) {
        if (!ok) throw new IllegalStateException("Error: " + what);
    }

    public static void main(String[] args) throws Exception {
        RedisClient client = RedisClient.create("redis://" + System.getenv("REDIS_HOST") + ":" + System.getenv("REDIS_PORT"));
        StatefulRedisConnection<String, String> connection = client.connect(), other = client.connect();
        RedisCommands<String, String> sync = connection.sync();
        RedisAsyncCommands<String, String> async = connection.async();

        List<RedisFuture<Long>> all = new ArrayList<>();
        for (int n = 0; n < 1000; n++) all.add(async.incr("counter"));
        check(LettuceFutures.awaitAll(java.time.Duration.ofSeconds(20), all.toArray(new RedisFuture[0])), "a thousand at once");
        for (int n = 0; n < 1000; n++) check(all.get(n).get() == n + 1, "order");

        sync.multi();
        sync.set("a", "1");
        sync.mset(Map.of("b", "2", "c", "3"));
        TransactionResult result = sync.exec();
        check(result.size() == 2 && sync.mget("a", "b", "c").get(2).getValue().equals("3"), "transaction");
        sync.zadd("z", 1.0, "one", 2.0, "two");
        check(sync.zrangeWithScores("z", 0, -1).get(1).getScore() == 2, "doubles of RESP3");
        check(sync.<Long>eval("return redis.call('DEL', KEYS[1], KEYS[2])", ScriptOutputType.INTEGER, "a", "b") == 2, "script");
        ScanIterator<String> scan = ScanIterator.scan(sync, ScanArgs.Builder.matches("c*"));
        Set<String> found = new HashSet<>();
        scan.forEachRemaining(found::add);
        check(found.equals(Set.of("c", "counter")), "scan: " + found);

        Map<String, String> near = new ConcurrentHashMap<>();
        CacheFrontend<String, String> cache = ClientSideCaching.enable(CacheAccessor.forMap(near), connection, TrackingArgs.Builder.enabled());
        check("3".equals(cache.get("c")) && near.containsKey("c"), "cache");
        other.sync().set("c", "4");
        for (int n = 0; n < 500 && near.containsKey("c"); n++) Thread.sleep(10);
        check("4".equals(cache.get("c")), "a cached value that has changed: " + cache.get("c"));
        connection.close();
        other.close();
        client.shutdown();
    }
}
