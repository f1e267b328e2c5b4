import java.util.List;
import redis.clients.jedis.*;
import redis.clients.jedis.params.SetParams;

/** Jedis: a pool, pipelines, transactions with WATCH, subscriptions, scripts, waiting. */
class app_jedis {
    static void check(boolean ok, String what) {
        if (!ok) throw new IllegalStateException("Error: " + what);
    }

    public static void main(String[] args) throws Exception {
        String host = System.getenv("REDIS_HOST");
        int port = Integer.parseInt(System.getenv("REDIS_PORT"));
        try (JedisPooled pool = new JedisPooled(host, port)) {
            check("OK".equals(pool.set("k", "v", SetParams.setParams().nx().ex(60))) && pool.set("k", "w", SetParams.setParams().nx()) == null, "SET NX");
            try (Pipeline pipe = (Pipeline) pool.pipelined()) {
                for (int n = 0; n < 300; n++) pipe.hset("hash", "f" + n, "" + n);
                check(pipe.syncAndReturnAll().size() == 300, "pipeline");
            }
            check(pool.hgetAll("hash").size() == 300 && pool.hincrBy("hash", "f1", 9) == 10, "hash");
            check(pool.eval("return {KEYS[1], ARGV[1], redis.call('HLEN', KEYS[1])}", List.of("hash"), List.of("a")).toString().equals("[hash, a, 300]"), "script");
            new Thread(() -> { try { Thread.sleep(100); } catch (InterruptedException e) { } pool.lpush("queue", "element"); }).start();
            check("element".equals(pool.brpop(5, "queue").get(1)), "BRPOP");
        }
        try (Jedis one = new Jedis(host, port); Jedis two = new Jedis(host, port)) {
            one.set("n", "1");
            one.watch("n");
            two.set("n", "2");
            Transaction lost = one.multi();
            lost.incr("n");
            check(lost.exec() == null, "a transaction whose key has changed");
            one.watch("n");
            Transaction won = one.multi();
            Response<Long> sum = won.incr("n");
            won.exec();
            check(sum.get() == 3, "transaction");
            Thread listener = new Thread(() -> one.subscribe(new JedisPubSub() {
                @Override public void onMessage(String channel, String text) { unsubscribe(); }
            }, "news"));
            listener.start();
            while (two.publish("news", "hello") == 0) Thread.sleep(10);
            listener.join(5000);
            check(!listener.isAlive(), "subscription");
        }
    }
}
