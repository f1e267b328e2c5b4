// node-redis itself: MULTI, WATCH, scripts, publish/subscribe, streams, SCAN, a pool.
'use strict'
const assert = require('node:assert')
const { createClient, createClientPool, defineScript } = require('redis')
const { run, url } = require('./common')

run(async () => {
  const add = defineScript({
    NUMBER_OF_KEYS: 2,
    SCRIPT: "return redis.call('INCRBY', KEYS[1], redis.call('GET', KEYS[2]))",
    parseCommand: (parser, a, b) => parser.pushKeys([a, b]),
    transformReply: undefined,
  })
  for (const RESP of [2, 3]) {
    const client = await createClient({ url, RESP, scripts: { add } }).connect()
    await client.flushAll()
    assert.deepStrictEqual(await client.multi().set('a', '1').incr('a').exec(), ['OK', 2])
    await client.set('by', '5')
    assert.strictEqual(await client.add('a', 'by'), 7)
    const heard = new Promise((resolve) => { client.heard = resolve })
    const subscriber = await client.duplicate().connect()
    await subscriber.subscribe('news', (message) => client.heard(message))
    await client.publish('news', 'hello')
    assert.strictEqual(await heard, 'hello')
    const seen = []
    await client.mSet([...Array(50).keys()].flatMap((n) => [`k${n}`, String(n)]))
    for await (const keys of client.scanIterator({ MATCH: 'k*', COUNT: 7 })) seen.push(...keys)
    assert.strictEqual(new Set(seen).size, 50)
    await client.xGroupCreate('x', 'g', '0', { MKSTREAM: true })
    await client.xAdd('x', '*', { f: 'v' })
    assert.ok(await client.sendCommand(['XREADGROUP', 'GROUP', 'g', 'me', 'STREAMS', 'x', '>']))
    subscriber.destroy()
    client.destroy()
  }
  const pool = await createClientPool({ url }).connect()
  await Promise.all([...Array(20).keys()].map(() => pool.incr('n')))
  assert.strictEqual(await pool.get('n'), '20')
})
