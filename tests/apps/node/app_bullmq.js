// BullMQ: jobs with results, priorities, delays, retries, a flow with children, a repeated job, events.
'use strict'
const assert = require('node:assert')
const { FlowProducer, Queue, QueueEvents, Worker } = require('bullmq')
const { host, port, run } = require('./common')

run(async () => {
  const connection = { host, port, maxRetriesPerRequest: null }
  const queue = new Queue('apps', { connection })
  const events = new QueueEvents('apps', { connection })
  await events.waitUntilReady()
  let ticks = 0
  const worker = new Worker('apps', async (job) => {
    if (job.name === 'tick') { ticks += 1; return ticks }
    if (job.name === 'twice' && job.attemptsMade === 0) throw new Error('as it should')
    if (job.name === 'parent') return Object.values(await job.getChildrenValues()).reduce((a, b) => a + b, 0)
    await job.updateProgress(50)
    return job.data.n * 2
  }, { connection, concurrency: 4 })
  await worker.waitUntilReady()
  const jobs = await queue.addBulk([...Array(20).keys()].map((n) => ({ name: 'double', data: { n } })))
  const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 20000)))
  assert.deepStrictEqual(results, [...Array(20).keys()].map((n) => n * 2))
  const first = await queue.add('double', { n: 4 }, { priority: 1, delay: 300 })
  assert.strictEqual(await first.waitUntilFinished(events, 20000), 8)
  const twice = await queue.add('twice', { n: 3 }, { attempts: 2, backoff: 100 })
  assert.strictEqual(await twice.waitUntilFinished(events, 20000), 6)
  const flow = new FlowProducer({ connection })
  const tree = await flow.add({
    name: 'parent', queueName: 'apps', data: {},
    children: [1, 2, 3].map((n) => ({ name: 'double', queueName: 'apps', data: { n } })),
  })
  assert.strictEqual(await tree.job.waitUntilFinished(events, 20000), 12)
  await queue.upsertJobScheduler('tick', { every: 200, limit: 2 }, { name: 'tick' })
  for (let i = 0; i < 100 && ticks < 2; i++) await new Promise((r) => setTimeout(r, 100))
  assert.ok(ticks >= 2)
  const counts = await queue.getJobCounts()
  assert.strictEqual(counts.failed, 0)
  await queue.pause()
  assert.strictEqual(await queue.isPaused(), true)
  await worker.close()
  await queue.obliterate({ force: true })
})
