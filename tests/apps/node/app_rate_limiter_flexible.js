// rate-limiter-flexible: over ioredis and node-redis, with points, blocks, penalties and rewards.
'use strict'
const assert = require('node:assert')
const Redis = require('ioredis')
const { createClient } = require('redis')
const { BurstyRateLimiter, RateLimiterRedis, RateLimiterQueue } = require('rate-limiter-flexible')
const { host, port, run, url } = require('./common')

const limited = async (limiter) => {
  for (let i = 0; i < 3; i++) await limiter.consume('me')
  await assert.rejects(limiter.consume('me'), (why) => why.msBeforeNext > 0)
  assert.strictEqual((await limiter.get('me')).consumedPoints, 4)
  await limiter.reward('me', 2)
  await limiter.penalty('me', 1)
  assert.ok(await limiter.block('me', 5))
  await assert.rejects(limiter.consume('me'))
  assert.strictEqual(await limiter.delete('me'), true)
  await limiter.consume('me')
}

run(async () => {
  const io = new Redis(port, host)
  const node = await createClient({ url }).connect()
  await limited(new RateLimiterRedis({ storeClient: io, keyPrefix: 'io', points: 3, duration: 30 }))
  await limited(new RateLimiterRedis({
    storeClient: node, useRedisPackage: true, keyPrefix: 'node', points: 3, duration: 30,
  }))
  const slow = new RateLimiterRedis({ storeClient: io, keyPrefix: 'slow', points: 1, duration: 1 })
  const burst = new RateLimiterRedis({ storeClient: io, keyPrefix: 'burst', points: 2, duration: 5 })
  const bursty = new BurstyRateLimiter(slow, burst)
  for (let i = 0; i < 3; i++) await bursty.consume('me')
  await assert.rejects(bursty.consume('me'))
  const queue = new RateLimiterQueue(slow)
  await queue.removeTokens(1, 'queued')
  await queue.removeTokens(1, 'queued')
})
