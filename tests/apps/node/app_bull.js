// Bull (the older BullMQ): jobs, a delayed one, one that is tried again, progress, counts.
'use strict'
const assert = require('node:assert')
const Queue = require('bull')
const { host, port, run } = require('./common')

run(async () => {
  const queue = new Queue('apps', { redis: { host, port } })
  queue.process('double', 4, async (job) => { await job.progress(42); return job.data.n * 2 })
  queue.process('twice', async (job) => {
    if (job.attemptsMade === 0) throw new Error('as it should')
    return 'well'
  })
  const jobs = await Promise.all([...Array(20).keys()].map((n) => queue.add('double', { n })))
  assert.deepStrictEqual(await Promise.all(jobs.map((job) => job.finished())), [...Array(20).keys()].map((n) => 2 * n))
  const later = await queue.add('double', { n: 5 }, { delay: 300, priority: 2 })
  assert.strictEqual(await later.finished(), 10)
  const again = await queue.add('twice', {}, { attempts: 2, backoff: 100 })
  assert.strictEqual(await again.finished(), 'well')
  assert.strictEqual((await queue.getJobCounts()).completed, 22)
  await queue.obliterate({ force: true })
})
