"""Flask: Flask-Session, Flask-Limiter and Flask-Caching of an application that answers requests."""

import flask
import flask_session
import redis
from common import HOST, PORT, URL
from flask_caching import Cache
from flask_limiter import Limiter


def main():
    app = flask.Flask(__name__)
    app.config.update(SECRET_KEY="x", SESSION_TYPE="redis", SESSION_REDIS=redis.Redis(HOST, PORT))
    app.config.update(CACHE_TYPE="RedisCache", CACHE_REDIS_URL=URL)
    flask_session.Session(app)
    cache = Cache(app)
    limiter = Limiter(lambda: "one", app=app, storage_uri=URL, strategy="moving-window")
    calls = []

    @app.route("/count")
    def count():
        flask.session["n"] = flask.session.get("n", 0) + 1
        return str(flask.session["n"])

    @app.route("/slow")
    @cache.cached(timeout=30)
    def slow():
        calls.append(1)
        return "done"

    @app.route("/limited")
    @limiter.limit("2 per minute")
    def limited():
        return "in"

    @app.route("/leave")
    def leave():
        flask.session.clear()
        return "gone"

    client, other = app.test_client(), app.test_client()
    assert [client.get("/count").text for _ in range(3)] == ["1", "2", "3"]
    assert other.get("/count").text == "1"
    client.get("/leave")
    assert client.get("/count").text == "1"
    assert [client.get("/slow").text for _ in range(3)] == ["done"] * 3 and len(calls) == 1
    with app.app_context():
        cache.clear()
    client.get("/slow")
    assert len(calls) == 2
    assert [client.get("/limited").status_code for _ in range(3)] == [200, 200, 429]


if __name__ == "__main__":
    main()
