# The jobs of app_sidekiq.rb, and how both sides find the server.
require "sidekiq"

URL = "redis://#{ENV["REDIS_HOST"]}:#{ENV["REDIS_PORT"]}/0"
Sidekiq.configure_server do |config|
  config.redis = { url: URL }
  config.options[:poll_interval_average] = 1
end
Sidekiq.configure_client { |config| config.redis = { url: URL } }

class Count
  include Sidekiq::Worker
  def perform(number)
    Sidekiq.redis do |redis|
      redis.multi { |all| all.sadd("done", number); all.incr("ran") }
    end
  end
end

class Fails
  include Sidekiq::Worker
  sidekiq_options retry: 5
  sidekiq_retry_in { 1 }
  def perform
    Sidekiq.redis { |redis| redis.incr("failed") < 3 } && raise("not yet")
  end
end
