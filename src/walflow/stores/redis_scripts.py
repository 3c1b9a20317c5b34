"""The Redis store's scripts. Each script is one atomic step on the server.

Every script repeats safely, because the client sends it again when the answer was lost. Keys are
declared, and all keys of a pipeline have fixed names, so nothing has to be searched for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from walflow.stores.cached import HISTORY_LENGTH

__all__ = [
    "ACQUIRE_LEASE",
    "CLEAN_UP_TABLE",
    "FINISH_REQUEST",
    "FOREIGN",
    "FORMAT",
    "PUT_FIELD",
    "PUT_REQUEST",
    "RELEASE_LEASE",
    "RENEW_LEASE",
    "ROLL_BACK",
    "UPDATE_STATES",
    "Keys",
]

FORMAT = "2"
"""The format of the entries. A store of another format is not touched."""

FOREIGN = "WALFLOWFORMAT"
"""The prefix of a script's error that found another format."""

_EARLIER_STATES = HISTORY_LENGTH - 1

_REQUEST_SECONDS = 24 * 60 * 60
"""How long the outcome of a request can be read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of one pipeline."""

    format: str
    states: str
    """Hash: a table's oid to its current state."""
    history: str
    """Hash: a table's oid to the states before the current one, one a line, oldest first."""
    rolled_back: str
    """Hash: a table's oid to the call that last rolled it back, until its next move."""
    schemas: str
    """Hash: oid and version to a table's schema."""
    mappings: str
    """Hash: a table's oid to its name in the destination."""
    lease: str
    """Hash: the holder, the end of its lease (ms of the server's clock), and its report."""
    requests: str
    """Hash: id to an open request."""
    finished: str
    """Hash: id to a finished request, with its outcome on a second line."""
    finished_at: str
    """Sorted set: ids of finished requests by time."""

    @classmethod
    def of(cls, prefix: str, pipeline: str) -> Self:
        """Escaped, so that the keys of pipelines ``a`` and ``a:b`` never collide."""
        return cls(*(f"{prefix}{quote(pipeline, safe='')}:{name}" for name in cls.__slots__))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    # As the scripts take them.

    @property
    def of_states(self) -> tuple[str, ...]:
        return (self.format, self.states, self.history, self.rolled_back)

    @property
    def of_lease(self) -> tuple[str, ...]:
        return (self.format, self.lease)

    @property
    def of_requests(self) -> tuple[str, ...]:
        return (self.format, self.requests, self.finished, self.finished_at)


_CHECK = f"""
local call = redis.call
local format = call('GET', KEYS[1])
if format and format ~= '{FORMAT}' then
  return redis.error_reply('{FOREIGN} ' .. format)
end
"""

_MARK = (
    _CHECK
    + f"""
if not format then
  call('SET', KEYS[1], '{FORMAT}')
end
"""
)

_NOW = """
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

UPDATE_STATES = (
    _MARK
    + f"""
-- KEYS: format, states, history, rolled_back; ARGV: oid, state, oid, state, ...
local states, history, rolled_back = KEYS[2], KEYS[3], KEYS[4]
local identity = '^%S+ %S+'
for i = 1, #ARGV, 2 do
  local table_oid, state = ARGV[i], ARGV[i + 1]
  local current = call('HGET', states, table_oid)
  if current and current:match(identity) ~= state:match(identity) then
    local earlier = call('HGET', history, table_oid)
    earlier = earlier and earlier .. '\\n' .. current or current
    local _, line_breaks = earlier:gsub('\\n', '')
    for _ = {_EARLIER_STATES}, line_breaks do
      earlier = earlier:match('\\n(.*)')
    end
    call('HSET', history, table_oid, earlier)
  end
  call('HSET', states, table_oid, state)
  call('HDEL', rolled_back, table_oid)
end
"""
)
"""A state begins with its phase and time. If these are the current one's, it replaces the current
one."""

ROLL_BACK = (
    _CHECK
    + """
-- KEYS: format, states, history, rolled_back; ARGV: oid, id of this call
local states, history, rolled_back = KEYS[2], KEYS[3], KEYS[4]
local table_oid, this_call = ARGV[1], ARGV[2]
if call('HGET', rolled_back, table_oid) == this_call then
  return call('HGET', states, table_oid)
end
local earlier = call('HGET', history, table_oid)
if not earlier then
  return false
end
local rest, last = earlier:match('^(.*)\\n([^\\n]*)$')
if rest then
  call('HSET', history, table_oid, rest)
else
  last = earlier
  call('HDEL', history, table_oid)
end
call('HSET', states, table_oid, last)
call('HSET', rolled_back, table_oid, this_call)
return last
"""
)

PUT_FIELD = (
    _MARK
    + """
-- KEYS: format, a hash; ARGV: field, value
call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
)

CLEAN_UP_TABLE = (
    _CHECK
    + """
-- KEYS: format, states, history, rolled_back, mappings, schemas; ARGV: oid
for i = 2, 5 do
  call('HDEL', KEYS[i], ARGV[1])
end
local schemas, mine = KEYS[6], ARGV[1] .. ':'
for _, field in ipairs(call('HKEYS', schemas)) do
  if field:sub(1, #mine) == mine then
    call('HDEL', schemas, field)
  end
end
"""
)

ACQUIRE_LEASE = (
    _MARK
    + _NOW
    + """
-- KEYS: format, lease; ARGV: holder's id, holder, ms
local lease = KEYS[2]
local id, holder, ends = unpack(call('HMGET', lease, 'id', 'holder', 'ends'))
if id and id ~= ARGV[1] then
  if tonumber(ends) > now then
    return {holder, string.format('%.0f', ends - now)}
  end
  call('DEL', lease)
end
call('HSET', lease, 'id', ARGV[1], 'holder', ARGV[2],
     'ends', string.format('%.0f', now + ARGV[3]))
return false
"""
)
"""Returns the holder and the rest of its time, or nothing. Another holder's report goes with its
lease."""

RENEW_LEASE = (
    _CHECK
    + _NOW
    + """
-- KEYS: format, lease; ARGV: holder's id, holder, ms, report or nothing
local lease = KEYS[2]
local id, holder = unpack(call('HMGET', lease, 'id', 'holder'))
if id ~= ARGV[1] then
  return holder or ''
end
call('HSET', lease, 'id', ARGV[1], 'holder', ARGV[2],
     'ends', string.format('%.0f', now + ARGV[3]))
if ARGV[4] then
  call('HSET', lease, 'report', ARGV[4])
end
return false
"""
)
"""Returns the process that has taken it (an empty text: it was released), or nothing."""

RELEASE_LEASE = (
    _CHECK
    + """
-- KEYS: format, lease; ARGV: holder's id
if call('HGET', KEYS[2], 'id') == ARGV[1] then
  call('DEL', KEYS[2])
end
"""
)

_FORGET_OLD_REQUESTS = (
    _NOW
    + f"""
local requests, finished, finished_at = KEYS[2], KEYS[3], KEYS[4]
local a_day_ago = now - {_REQUEST_SECONDS * 1000}
for _, id in ipairs(call('ZRANGEBYSCORE', finished_at, '-inf', a_day_ago)) do
  call('HDEL', finished, id)
  call('ZREM', finished_at, id)
end
"""
)

PUT_REQUEST = (
    _MARK
    + _FORGET_OLD_REQUESTS
    + """
-- KEYS: format, requests, finished, finished_at; ARGV: id, request
if call('HEXISTS', finished, ARGV[1]) == 0 then
  call('HSET', requests, ARGV[1], ARGV[2])
end
"""
)

FINISH_REQUEST = (
    _CHECK
    + _FORGET_OLD_REQUESTS
    + """
-- KEYS: format, requests, finished, finished_at; ARGV: id, outcome
local request = call('HGET', requests, ARGV[1]) or call('HGET', finished, ARGV[1])
if request then
  request = request:match('^[^\\n]*')
  call('HDEL', requests, ARGV[1])
  call('HSET', finished, ARGV[1], request .. '\\n' .. ARGV[2])
  call('ZADD', finished_at, now, ARGV[1])
end
"""
)
