"""redis-om: models as hashes, saved, changed, expired, listed and deleted. (Its searches want a module of Redis Stack.)

Keys are given, since this redis-om makes none with this pydantic.
"""

from common import HOST, PORT
from redis_om import HashModel, NotFoundError, get_redis_connection

connection = get_redis_connection(url=f"redis://{HOST}:{PORT}")


class Customer(HashModel):
    name: str
    age: int
    bio: str = ""

    class Meta:
        database = connection
        global_key_prefix = "shop"


def main():
    Customer(pk="one", name="Ann", age=41).save()
    ann = Customer.get("one")
    assert (ann.name, ann.age, ann.bio) == ("Ann", 41, "")
    ann.update(age=42, bio="reads")
    assert Customer.get("one").age == 42
    ann.expire(100)
    assert 0 < connection.ttl(ann.key()) <= 100
    with connection.pipeline() as pipe:
        Customer.add([Customer(pk=str(n), name=str(n), age=n) for n in range(20)], pipeline=pipe)
        pipe.execute()
    assert {*Customer.all_pks()} == {"one", *map(str, range(20))}
    Customer.delete("one")
    try:
        Customer.get("one")
    except NotFoundError:
        return
    raise AssertionError("it is still there")


if __name__ == "__main__":
    main()
