"""Stores: what clients ask the server to keep, such as responses, files and batches, in one sqlite database.

A kind of object is a `Table` in a module of its own here, over a msgspec Struct:

    class StoredThing(msgspec.Struct, frozen=True):
        title: str

    THINGS = Table("things", StoredThing)

There is nothing else to declare, and the database's schema stays as it is.  Structs change by new fields with
defaults: what was stored before is read with these.  The code of an endpoint keeps things in transactions, on
the store's own thread; `store_of` (serving/api/answering/stored.py) returns a server's store:

    row = await store.run(lambda kept: kept.insert(THINGS, tenant.salt, "thing_1", StoredThing("one")))
    row = await store.run(lambda kept: kept.get(THINGS, tenant.salt, "thing_1"))

All writes of one `run` are there, after a crash as well, or none is; when `run` returns, they are on the
disk.  A row belongs to a tenant, and no other finds it.  It is removed when its time is over, or if its
tenant needs the room: the oldest row first of those that have `ended`.
"""
