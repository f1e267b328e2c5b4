# Sidekiq: jobs now and later, one that fails at first, its queues and statistics.
require "sidekiq"
require "sidekiq/api"
require_relative "sidekiq_worker"

def check(ok, what)
  abort "Error: #{what}" unless ok
end

100.times { |number| Count.perform_async(number) }
Sidekiq::Client.push_bulk("class" => Count, "args" => (100...200).map { |number| [number] })
Count.perform_in(1, 200)
Fails.perform_async
check Sidekiq::Queue.new.size == 201, "#{Sidekiq::Queue.new.size} jobs in the queue"
check Sidekiq::ScheduledSet.new.size == 1, "scheduled"

log = File.open("/dev/null", "w")
worker = spawn("sidekiq", "-r", File.join(__dir__, "sidekiq_worker.rb"), "-c", "5", "-t", "5", out: log, err: log)
begin
  redis = Redis.new(url: URL)
  until redis.scard("done") == 201 && redis.get("failed").to_i == 3
    sleep 0.1
  end
  # Each once.
  check redis.get("ran").to_i == 201, "#{redis.get("ran")} runs of 201 jobs"
  sleep 0.1 until Sidekiq::Stats.new.processed >= 204
  check Sidekiq::Stats.new.failed == 2, "#{Sidekiq::Stats.new.failed} failures"
  check Sidekiq::ProcessSet.new.size == 1, "processes"
  check Sidekiq::RetrySet.new.size.zero?, "retries"
ensure
  Process.kill("TERM", worker)
  Process.wait(worker)
end
