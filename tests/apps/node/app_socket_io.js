// socket.io's Redis adapter: two servers, rooms, broadcasts, sockets of the other server.
'use strict'
const assert = require('node:assert')
const { createServer } = require('node:http')
const Redis = require('ioredis')
const { Server } = require('socket.io')
const { io } = require('socket.io-client')
const { createAdapter } = require('@socket.io/redis-adapter')
const { host, port, run, sleep } = require('./common')

const serve = async () => {
  const http = createServer()
  const publisher = new Redis(port, host)
  const server = new Server(http, { adapter: createAdapter(publisher, publisher.duplicate()) })
  server.on('connection', (socket) => {
    socket.on('join', (room, done) => { socket.join(room); done() })
  })
  await new Promise((resolve) => http.listen(0, resolve))
  return { server, at: http.address().port }
}

run(async () => {
  const [one, two] = [await serve(), await serve()]
  await sleep(500)
  const [a, b] = [io(`http://127.0.0.1:${one.at}`), io(`http://127.0.0.1:${two.at}`)]
  const heard = (socket, event) => new Promise((resolve) => socket.once(event, resolve))
  await Promise.all([heard(a, 'connect'), heard(b, 'connect')])
  const both = Promise.all([heard(a, 'all'), heard(b, 'all')])
  one.server.emit('all', 1)
  assert.deepStrictEqual(await both, [1, 1])
  await b.emitWithAck('join', 'room')
  const inRoom = heard(b, 'room')
  one.server.to('room').emit('room', 'x')
  assert.strictEqual(await inRoom, 'x')
  assert.strictEqual((await one.server.fetchSockets()).length, 2)
  assert.strictEqual((await one.server.in('room').fetchSockets()).length, 1)
  one.server.on('ping', (done) => done('pong'))
  assert.deepStrictEqual(await two.server.serverSideEmitWithAck('ping'), ['pong'])
})
