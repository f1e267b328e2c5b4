// express-session with connect-redis: a session through an application that answers requests.
'use strict'
const assert = require('node:assert')
const express = require('express')
const session = require('express-session')
const { RedisStore } = require('connect-redis')
const { createClient } = require('redis')
const { run, url } = require('./common')

run(async () => {
  const client = await createClient({ url }).connect()
  const store = new RedisStore({ client, prefix: 'apps:', ttl: 60 })
  const app = express()
  app.use(session({ store, secret: 'x', resave: false, saveUninitialized: false }))
  app.get('/count', (request, response) => {
    request.session.n = (request.session.n || 0) + 1
    response.send(String(request.session.n))
  })
  app.get('/leave', (request, response) => request.session.destroy(() => response.send('gone')))
  const server = app.listen(0)
  await new Promise((resolve) => server.once('listening', resolve))
  const at = (path) => `http://127.0.0.1:${server.address().port}${path}`
  const first = await fetch(at('/count'))
  const cookie = first.headers.get('set-cookie').split(';')[0]
  const get = async (path) => (await fetch(at(path), { headers: { cookie } })).text()
  assert.deepStrictEqual([await first.text(), await get('/count'), await get('/count')], ['1', '2', '3'])
  const promised = (method, ...args) => new Promise((resolve, reject) =>
    store[method](...args, (error, value) => (error ? reject(error) : resolve(value))))
  assert.strictEqual(await promised('length'), 1)
  assert.strictEqual((await promised('all')).length, 1)
  await get('/leave')
  assert.strictEqual(await promised('length'), 0)
  await promised('clear')
})
