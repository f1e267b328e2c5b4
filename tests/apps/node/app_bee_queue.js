// Bee-Queue: jobs, results through publish/subscribe, retries, delays, a health check.
'use strict'
const assert = require('node:assert')
const Queue = require('bee-queue')
const { host, port, run } = require('./common')

run(async () => {
  const queue = new Queue('apps', { redis: { host, port }, activateDelayedJobs: true })
  await queue.ready()
  let tries = 0
  queue.process(4, async (job) => {
    if (job.data.twice && tries++ === 0) throw new Error('as it should')
    return job.data.n * 2
  })
  const result = (job) => new Promise((resolve, reject) => {
    job.on('succeeded', resolve)
    job.on('failed', reject)
  })
  const ended = []
  for (let n = 0; n < 20; n++) {
    const job = queue.createJob({ n })
    ended.push(result(job))
    await job.save()
  }
  assert.deepStrictEqual(await Promise.all(ended), [...Array(20).keys()].map((n) => 2 * n))
  const later = queue.createJob({ n: 4 }).delayUntil(Date.now() + 300)
  const waited = result(later)
  await later.save()
  assert.strictEqual(await waited, 8)
  const again = queue.createJob({ n: 1, twice: true }).retries(2)
  const well = result(again)
  await again.save()
  assert.strictEqual(await well, 2)
  const health = await queue.checkHealth()
  assert.strictEqual(health.active, 0)
  await queue.destroy()
})
