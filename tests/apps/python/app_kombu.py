"""Kombu: messages through direct, topic and fanout exchanges, acknowledged, rejected, restored."""

import socket

import kombu
from common import URL


def main():
    got = []

    def take(body, message):
        got.append(body)
        message.ack()

    direct = kombu.Exchange("apps", "direct")
    queue = kombu.Queue("apps", direct, routing_key="a")
    news = kombu.Queue("news", kombu.Exchange("news", "fanout"))
    topics = kombu.Queue("topics", kombu.Exchange("topics", "topic"), routing_key="log.*")
    with kombu.Connection(URL) as connection:
        with connection.Consumer([queue, news, topics], callbacks=[take], accept=["json"]):
            producer = connection.Producer()
            for i in range(20):
                producer.publish({"n": i}, exchange=direct, routing_key="a", declare=[queue], priority=i % 3)
            producer.publish({"n": "one"}, exchange=topics.exchange, routing_key="log.info", declare=[topics])
            while len(got) < 21:
                connection.drain_events(timeout=10)
            # Who listens gets what is sent to all.
            producer.publish({"n": "all"}, exchange=news.exchange, declare=[news])
            while len(got) < 22:
                connection.drain_events(timeout=10)
        assert sorted(str(body["n"]) for body in got) == sorted([*map(str, range(20)), "all", "one"])
    with kombu.Connection(URL) as connection:
        # A message that was taken and not acknowledged comes again when its channel closes.
        channel = connection.channel()
        bound = queue(channel)
        kombu.Producer(channel).publish({"n": "back"}, exchange=direct, routing_key="a")
        assert bound.get() is not None
        channel.close()
        again = queue(connection.channel()).get()
        assert again.payload == {"n": "back"}
        again.reject()
        simple = connection.SimpleQueue("simple")
        simple.put({"n": 1})
        assert simple.get(timeout=5).payload == {"n": 1}
        try:
            simple.get(timeout=0.2)
            raise AssertionError("nothing is left")
        except (simple.Empty, socket.timeout):
            pass
        simple.close()


if __name__ == "__main__":
    main()
