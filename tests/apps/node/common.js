// What every application here needs: where the server is, and an end.
'use strict'
const host = process.env.REDIS_HOST
const port = Number(process.env.REDIS_PORT)

exports.host = host
exports.port = port
exports.url = `redis://${host}:${port}/0`
exports.sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Runs the workload, and ends the process with what came of it: libraries keep timers and connections.
exports.run = (main) => {
  main().then(
    () => process.exit(0),
    (error) => {
      console.error(String(error && error.stack ? error.stack.split('\n')[0] : error))
      process.exit(1)
    },
  )
}
