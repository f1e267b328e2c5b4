// node-redlock over ioredis: one lock at a time, extended, released.
'use strict'
const assert = require('node:assert')
const Redis = require('ioredis')
const Redlock = require('redlock')
const { host, port, run } = require('./common')

run(async () => {
  const redlock = new Redlock([new Redis(port, host)], { retryCount: 2, retryDelay: 50 })
  const lock = await redlock.lock('one', 5000)
  await assert.rejects(redlock.lock('one', 5000))
  const extended = await lock.extend(5000)
  await extended.unlock()
  await (await redlock.lock('one', 5000)).unlock()
  const both = await redlock.lock(['a', 'b'], 5000)
  await assert.rejects(redlock.lock(['b', 'c'], 5000))
  await both.unlock()
})
