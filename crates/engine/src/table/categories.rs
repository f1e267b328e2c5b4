//! The categories of commands (ACL CAT), as redis-server 7.0.15 has them: also of commands that are
//! refused here, since rules name them. Commands of our own are among those that they are like.

/// The bits of the categories that are about data: the first twelve.
pub const OF_DATA: u32 = (1 << 12) - 1;

/// The names of categories, in the order of Redis; the first one's bit is 1.
pub const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Categories, and the commands and subcommands that are in them.
#[rustfmt::skip]
const COMMANDS: [(&str, &str); 65] = [
    ("admin fast dangerous", "lastsave role"),
    (
        "admin slow dangerous",
        "acl|deluser acl|dryrun acl|getuser acl|list acl|load acl|log acl|save acl|setuser \
         acl|users bgrewriteaof bgsave cluster|addslots cluster|addslotsrange cluster|bumpepoch \
         cluster|count-failure-reports cluster|delslots cluster|delslotsrange cluster|failover \
         cluster|flushslots cluster|forget cluster|meet cluster|replicas cluster|replicate \
         cluster|reset cluster|saveconfig cluster|set-config-epoch cluster|setslot \
         cluster|slaves config|get config|resetstat config|rewrite config|set debug failover \
         latency|doctor latency|graph latency|histogram latency|history latency|latest \
         latency|reset module|list module|load module|loadex module|unload monitor psync \
         replconf replicaof save shutdown slaveof slowlog|get slowlog|len slowlog|reset sync",
    ),
    (
        "admin slow dangerous connection",
        "client|kill client|list client|no-evict client|pause client|unblock client|unpause",
    ),
    ("fast", "time"),
    (
        "fast connection",
        "asking auth echo hello ping quit readonly readwrite reset select",
    ),
    ("fast transaction", "discard multi unwatch watch"),
    ("hyperloglog admin slow dangerous", "pfselftest"),
    (
        "keyspace read fast",
        "dbsize exists expiretime pexpiretime pttl touch ttl type",
    ),
    (
        "keyspace read slow",
        "dump object|encoding object|freq object|idletime object|refcount randomkey scan",
    ),
    ("keyspace read slow dangerous", "keys"),
    ("keyspace slow", "object|help"),
    (
        "keyspace write fast",
        "expire expireat move persist pexpire pexpireat renamenx unlink",
    ),
    ("keyspace write fast dangerous", "swapdb"),
    ("keyspace write slow", "copy del rename"),
    (
        "keyspace write slow dangerous",
        "flushall flushdb migrate restore restore-asking",
    ),
    ("pubsub fast", "publish spublish"),
    (
        "pubsub slow",
        "psubscribe pubsub|channels pubsub|numpat pubsub|numsub pubsub|shardchannels \
         pubsub|shardnumsub punsubscribe ssubscribe subscribe sunsubscribe unsubscribe",
    ),
    ("read bitmap fast", "bitfield_ro getbit"),
    ("read bitmap slow", "bitcount bitpos"),
    ("read fast", "lolwut"),
    (
        "read geo slow",
        "geodist geohash geopos georadius_ro georadiusbymember_ro geosearch",
    ),
    ("read hash fast", "hexists hget hlen hmget hstrlen"),
    ("read hash slow", "hgetall hkeys hrandfield hscan hvals"),
    ("read hyperloglog slow", "pfcount"),
    ("read list fast", "llen"),
    ("read list slow", "lindex lpos lrange"),
    ("read set fast", "scard sismember smismember"),
    (
        "read set slow",
        "sdiff sinter sintercard smembers srandmember sscan sunion",
    ),
    ("read set sortedset list slow dangerous", "sort_ro"),
    ("read slow", "memory|usage"),
    (
        "read sortedset fast",
        "zcard zcount zlexcount zmscore zrank zrevrank zscore",
    ),
    (
        "read sortedset slow",
        "zdiff zinter zintercard zrandmember zrange zrangebylex zrangebyscore zrevrange \
         zrevrangebylex zrevrangebyscore zscan zunion",
    ),
    ("read stream fast", "xlen"),
    (
        "read stream slow",
        "xinfo|consumers xinfo|groups xinfo|stream xpending xrange xrevrange",
    ),
    ("read stream slow blocking", "xread"),
    ("read string fast", "get mget strlen"),
    ("read string slow", "getrange lcs substr"),
    (
        "slow",
        "acl acl|cat acl|genpass acl|help acl|whoami client cluster cluster|countkeysinslot \
         cluster|getkeysinslot cluster|help cluster|info cluster|keyslot cluster|links \
         cluster|myid cluster|nodes cluster|shards cluster|slots config config|help function \
         latency latency|help memory memory|doctor memory|help memory|malloc-stats memory|purge \
         memory|stats module module|help object pubsub pubsub|help script slowlog slowlog|help \
         xgroup xinfo",
    ),
    (
        "slow connection",
        "client|caching client|getname client|getredir client|help client|id client|info \
         client|reply client|setname client|tracking client|trackinginfo command command|count \
         command|docs command|getkeys command|getkeysandflags command|help command|info \
         command|list concord wait",
    ),
    ("slow dangerous", "info"),
    (
        "slow scripting",
        "eval eval_ro evalsha evalsha_ro fcall fcall_ro function|dump function|help \
         function|kill function|list function|stats script|debug script|exists script|flush \
         script|help script|kill script|load",
    ),
    ("slow transaction", "exec"),
    ("stream slow", "xgroup|help xinfo|help"),
    ("write bitmap slow", "bitfield bitop setbit"),
    (
        "write geo slow",
        "geoadd georadius georadiusbymember geosearchstore",
    ),
    (
        "write hash fast",
        "hdel hincrby hincrbyfloat hmset hset hsetnx",
    ),
    ("write hyperloglog admin slow dangerous", "pfdebug"),
    ("write hyperloglog fast", "pfadd"),
    ("write hyperloglog slow", "pfmerge"),
    ("write list fast", "lpop lpush lpushx rpop rpush rpushx"),
    (
        "write list slow",
        "linsert lmove lmpop lrem lset ltrim rpoplpush",
    ),
    (
        "write list slow blocking",
        "blmove blmpop blpop brpop brpoplpush",
    ),
    ("write set fast", "sadd smove spop srem"),
    ("write set slow", "sdiffstore sinterstore sunionstore"),
    ("write set sortedset list slow dangerous", "sort"),
    (
        "write slow scripting",
        "function|delete function|flush function|load function|restore",
    ),
    ("write sortedset fast", "zadd zincrby zpopmax zpopmin zrem"),
    ("write sortedset fast blocking", "bzpopmax bzpopmin"),
    (
        "write sortedset slow",
        "zdiffstore zinterstore zmpop zrangestore zremrangebylex zremrangebyrank \
         zremrangebyscore zunionstore",
    ),
    ("write sortedset slow blocking", "bzmpop"),
    (
        "write stream fast",
        "xack xadd xautoclaim xclaim xdel xsetid",
    ),
    (
        "write stream slow",
        "xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|setid \
         xtrim",
    ),
    ("write stream slow blocking", "xreadgroup"),
    (
        "write string fast",
        "append cad cas decr decrby delex getdel getex getset incr incrby incrbyfloat setnx",
    ),
    (
        "write string slow",
        "mset msetnx psetex set setex setrange",
    ),
];

/// All commands and subcommands that rules may name, with their categories, a bit for each.
pub fn commands() -> impl Iterator<Item = (&'static str, u32)> {
    COMMANDS.iter().flat_map(|(categories, names)| {
        let bits = categories.split(' ').filter_map(bit_of).fold(0, |bits, bit| bits | bit);
        names.split(' ').map(move |name| (name, bits))
    })
}

/// The bit of the category of this name, in lower case.
#[must_use]
pub fn bit_of(category: &str) -> Option<u32> {
    CATEGORIES.iter().position(|own| *own == category).map(|bit| 1 << bit)
}

/// The names of a command's categories; none if nobody knows it.
pub fn names_of(command: &str) -> impl Iterator<Item = &'static str> {
    let is_it = |names: &str| names.split(' ').any(|name| name == command);
    let found = COMMANDS.iter().find(|(_, names)| is_it(names));
    found.map_or("", |(categories, _)| categories).split(' ').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn every_command_is_named_once_and_every_category_is_one() {
        let names: BTreeSet<&str> = commands().map(|(name, _)| name).collect();
        assert_eq!(names.len(), commands().count());
        for (categories, _) in COMMANDS {
            assert!(categories.split(' ').all(|name| bit_of(name).is_some()), "{categories}");
        }
        assert_eq!(OF_DATA, bit_of("stream").unwrap() * 2 - 1);
        assert_eq!(names_of("get").collect::<Vec<_>>(), ["read", "string", "fast"]);
        assert_eq!(names_of("nosuch").count(), 0);
        let table = super::super::CommandTable::memory();
        for spec in table.specs() {
            assert!(names.contains(&*spec.name), "{} has categories", spec.name);
        }
    }
}
