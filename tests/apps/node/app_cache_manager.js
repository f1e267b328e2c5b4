// cache-manager over Keyv's Redis store: values, several at once, times to live, wrap, clear.
'use strict'
const assert = require('node:assert')
const { createCache } = require('cache-manager')
const { default: KeyvRedis, Keyv } = require('@keyv/redis')
const { run, sleep, url } = require('./common')

run(async () => {
  const store = new Keyv({ store: new KeyvRedis(url), namespace: 'apps' })
  const cache = createCache({ stores: [store] })
  await cache.set('a', { x: 1 }, 30000)
  assert.deepStrictEqual(await cache.get('a'), { x: 1 })
  await cache.mset([{ key: 'b', value: 2 }, { key: 'c', value: 3, ttl: 300 }])
  assert.deepStrictEqual(await cache.mget(['b', 'c']), [2, 3])
  let calls = 0
  const slow = () => cache.wrap('d', () => { calls += 1; return 4 }, 30000)
  assert.deepStrictEqual([await slow(), await slow(), calls], [4, 4, 1])
  await sleep(1000)
  assert.ok(!(await cache.get('c')))
  await cache.del('b')
  assert.ok(!(await cache.get('b')))
  await cache.clear()
  assert.ok(!(await cache.get('a')))
})
