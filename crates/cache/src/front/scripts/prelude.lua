-- What scripts see: the functions of Lua that they may call, those of Redis, and tables of them
-- that cannot be changed. `native` has what is written in Rust; scripts call its functions without
-- one of these between, so that errors know the line that called, also of `return f()`.
--
-- A script has an empty table as its globals, which shows `base` and takes nothing.

local native = ...

local assert, error, getmetatable, ipairs, next, pairs, pcall, rawequal, rawget, rawset, select =
  assert, error, getmetatable, ipairs, next, pairs, pcall, rawequal, rawget, rawset, select
local setmetatable, tonumber, tostring, type, unpack, xpcall, loadstring, collectgarbage =
  setmetatable, tonumber, tostring, type, unpack, xpcall, loadstring, collectgarbage
local coroutine, math, string, table = coroutine, math, string, table
local concat, create, resume, sort = table.concat, coroutine.create, coroutine.resume, table.sort

local READONLY = 'Attempt to modify a readonly table'

-- A table that shows another one and cannot be changed, and the one that it shows.
local shown = setmetatable({}, {__mode = 'k'})
local sealed

local function protect(real, meta)
  local empty = {}
  shown[empty] = real
  meta = meta or {}
  meta.__index = real
  meta.__newindex = function() error(READONLY, 2) end
  meta.__metatable = sealed
  return setmetatable(empty, meta)
end

sealed = protect({})
getmetatable(sealed).__metatable = sealed

local function library(functions)
  local made = {}
  for name, value in pairs(functions) do
    if name == 'new' then
      made.new = function() return library(value()) end
    else
      made[name] = value
    end
  end
  return protect(made)
end

-- An error of a function of Rust, as scripts have it.
local function plain(fault)
  if type(fault) == 'userdata' then return native.caught(fault) end
  return fault
end

-- A script that is to end cannot catch that.
local function settle(is_right, ...)
  if is_right then return true, ... end
  local stop = native.stop_text()
  if stop then error(stop, 0) end
  return false, plain((...))
end

-- As `settle`, of an error that is a table, the text of it: scripts of old expect a text.
local function caught(is_right, ...)
  if is_right then return true, ... end
  local _, fault = settle(false, ...)
  local text = type(fault) == 'table' and rawget(fault, 'err')
  return false, type(text) == 'string' and text or fault
end

local base = {
  _VERSION = _VERSION, assert = assert, error = error, gcinfo = gcinfo, ipairs = ipairs,
  rawequal = rawequal, select = select, tonumber = tonumber, tostring = tostring, type = type,
  unpack = unpack, getmetatable = getmetatable,
}

function base.pcall(...) return caught(pcall(...)) end
function base.xpcall(f, handler)
  return settle(xpcall(f, function(fault) return handler(plain(fault)) end))
end
function base.next(t, key) return next(shown[t] or t, key) end
function base.rawget(t, key) return rawget(shown[t] or t, key) end

function base.pairs(t)
  if type(t) ~= 'table' then
    error("bad argument #1 to 'pairs' (table expected, got " .. type(t) .. ')', 2)
  end
  local real = shown[t]
  if not real then return pairs(t) end
  return function(_, key) return next(real, key) end, t, nil
end

function base.rawset(t, key, value)
  if shown[t] then error(READONLY, 0) end
  return rawset(t, key, value)
end

function base.setmetatable(t, meta)
  if shown[t] then error(READONLY, 0) end
  return setmetatable(t, meta)
end

function base.collectgarbage(what, ...)
  if what == nil or what == 'collect' or what == 'count' or what == 'step' then
    return collectgarbage(what, ...)
  end
  return 0
end

-- No compiled code: it is not checked by anyone.
function base.loadstring(text, name)
  if type(text) == 'string' and text:byte() == 27 then return nil, 'bytecode is not loaded' end
  return loadstring(text, name)
end

function base.load(piece, name)
  if type(piece) ~= 'function' then
    error("bad argument #1 to 'load' (function expected, got " .. type(piece) .. ')', 2)
  end
  local pieces = {}
  while true do
    local text = piece()
    if text == nil or text == '' then break end
    if type(text) ~= 'string' then return nil, 'reader function must return a string' end
    pieces[#pieces + 1] = text
  end
  return base.loadstring(concat(pieces), name or '=(load)')
end

base.coroutine = protect({
  create = create, running = coroutine.running, status = coroutine.status,
  yield = coroutine.yield,
  resume = function(...) return settle(resume(...)) end,
  wrap = function(f)
    local thread = create(f)
    local function passed(is_right, ...)
      if is_right then return ... end
      error((...), 0)
    end
    return function(...) return passed(resume(thread, ...)) end
  end,
})

-- Texts. What the C library has may recurse without end, or not look at the clock.
string.find, string.match, string.rep = native.find, native.match, native.rep
local seek = native.seek

local function text_of(value, index, name)
  local kind = type(value)
  if kind == 'string' or kind == 'number' then return tostring(value) end
  local found = value == nil and 'no value' or kind
  local why = ' (string expected, got ' .. found .. ')'
  error('bad argument #' .. index .. " to '" .. name .. "'" .. why, 3)
end

function string.gmatch(text, pattern)
  text, pattern = text_of(text, 1, 'gmatch'), text_of(pattern, 2, 'gmatch')
  local at, bytes = 0, #text
  local function step(from, to, ...)
    if from == nil then at = bytes + 1 return nil end
    at = to > from and to or to + 1
    return ...
  end
  return function()
    if at > bytes then return nil end
    return step(seek(text, pattern, at, false))
  end
end

function string.gsub(text, pattern, by, most)
  text, pattern = text_of(text, 1, 'gsub'), text_of(pattern, 2, 'gsub')
  local kind = type(by)
  if kind == 'string' or kind == 'number' then return native.gsub(text, pattern, by, most) end
  if kind ~= 'function' and kind ~= 'table' then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  local pieces, count, at, bytes = {}, 0, 0, #text
  local anchored = pattern:sub(1, 1) == '^'
  most = most or bytes + 1
  local function put(from, to, ...)
    if from == nil then return false end
    local whole, value = text:sub(from + 1, to)
    if kind == 'function' then value = by(...) else value = by[(...)] end
    if not value then
      value = whole
    elseif type(value) ~= 'string' and type(value) ~= 'number' then
      error('invalid replacement value (a ' .. type(value) .. ')', 3)
    end
    count = count + 1
    pieces[#pieces + 1] = text:sub(at + 1, from)
    pieces[#pieces + 1] = value
    at = to
    if to == from then
      pieces[#pieces + 1] = text:sub(from + 1, from + 1)
      at = from + 1
    end
    return not anchored
  end
  while count < most and at <= bytes do
    if not put(seek(text, pattern, at, anchored)) then break end
  end
  pieces[#pieces + 1] = text:sub(at + 1)
  return concat(pieces), count
end

-- A long table is not sorted in one step of C.
local SORTED_MAX = 4096

function table.sort(t, is_less)
  local count = #t
  if count <= SORTED_MAX then return sort(t, is_less) end
  is_less = is_less or function(a, b) return a < b end
  local function sink(from, last)
    local value = t[from]
    while 2 * from <= last do
      local child = 2 * from
      if child < last and is_less(t[child], t[child + 1]) then child = child + 1 end
      if not is_less(value, t[child]) then break end
      t[from] = t[child]
      from = child
    end
    t[from] = value
  end
  for from = math.floor(count / 2), 1, -1 do sink(from, count) end
  for last = count, 2, -1 do
    t[1], t[last] = t[last], t[1]
    sink(1, last - 1)
  end
end

math.random, math.randomseed = native.random, native.randomseed

getmetatable('').__metatable = sealed
string.gfind = string.gmatch
base.string, base.table, base.math = protect(string), protect(table), protect(math)
for name, functions in pairs(native.libraries) do base[name] = library(functions) end

-- Redis's own functions.
local function failed(text) return {err = 'ERR ' .. text} end

local redis = native.redis
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
redis.REPL_NONE, redis.REPL_AOF, redis.REPL_SLAVE, redis.REPL_REPLICA, redis.REPL_ALL =
  0, 1, 2, 2, 3
redis.REDIS_VERSION, redis.REDIS_VERSION_NUM = native.version, native.version_number

function redis.replicate_commands() return true end
function redis.breakpoint() return false end
function redis.debug() end

local function missing(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end

-- The globals of scripts, and those of functions, which have no KEYS and ARGV.
local function globals(own, meta)
  local empty = protect(setmetatable(own, {__index = missing}), meta)
  own._G = empty
  return empty
end

base.redis = protect(redis)
local functions = {}
for name, value in pairs(base) do functions[name] = value end

-- While a library is loaded it may register functions, and call nothing.
local registered
local function is_text(value) return type(value) == 'string' or type(value) == 'number' end

local function registers(...)
  if not registered then
    error(failed('redis.register_function can only be called on FUNCTION LOAD command'), 0)
  end
  local name, callback = ...
  local flags, about
  if select('#', ...) < 1 or select('#', ...) > 2 then
    error(failed('wrong number of arguments to redis.register_function'), 0)
  elseif select('#', ...) == 1 then
    local given = name
    if type(given) ~= 'table' then
      error(failed('calling redis.register_function with a single argument is only applicable to '
        .. 'Lua table (representing named arguments).'), 0)
    end
    name, callback = nil, nil
    for key, value in pairs(given) do
      if key == 'function_name' then name = value
      elseif key == 'callback' then callback = value
      elseif key == 'flags' then flags = value
      elseif key == 'description' then about = value
      else error(failed('unknown argument given to redis.register_function'), 0) end
    end
    if name == nil then
      error(failed('redis.register_function must get a function name argument'), 0)
    end
    if callback == nil then
      error(failed('redis.register_function must get a callback argument'), 0)
    end
    if not is_text(name) then
      error(failed('function_name argument given to redis.register_function must be a string'), 0)
    end
    if about ~= nil and not is_text(about) then
      error(failed('description argument given to redis.register_function must be a string'), 0)
    end
    if type(callback) ~= 'function' then
      error(failed('callback argument given to redis.register_function must be a function'), 0)
    end
  elseif not is_text(name) then
    error(failed('first argument to redis.register_function must be a string'), 0)
  elseif type(callback) ~= 'function' then
    error(failed('second argument to redis.register_function must be a function'), 0)
  end
  if flags ~= nil and type(flags) ~= 'table' then
    error(failed('flags argument to redis.register_function must be a table representing '
      .. 'function flags'), 0)
  end
  name, about = tostring(name), about ~= nil and tostring(about) or nil
  if not name:match('^[%w_]+$') then
    error(failed('Library names can only contain letters, numbers, or underscores(_) and must be '
      .. 'at least one character long'), 0)
  end
  if registered[name] then error(failed('Function already exists in the library'), 0) end
  local known = {['no-writes'] = true, ['allow-oom'] = true, ['allow-stale'] = true,
    ['no-cluster'] = true, ['allow-cross-slot-keys'] = true}
  local list = {}
  for _, flag in ipairs(flags or {}) do
    if not known[flag] then error(failed('unknown flag given'), 0) end
    list[#list + 1] = flag
  end
  registered[name] = {callback = callback, flags = concat(list, ' '), about = about}
  registered[#registered + 1] = name
end

local loading = {register_function = registers}
for name, value in pairs(redis) do
  if name == 'log' or type(value) ~= 'function' then loading[name] = value end
end
loading = {redis = protect(setmetatable(loading, {__index = missing}))}
setmetatable(loading, {__index = missing})

-- Where an error happened, and what it says; as Redis, a table of both.
local function handler(fault)
  local source, line = native.place()
  fault = plain(fault)
  if type(fault) ~= 'table' then
    fault = {err = 'ERR ' .. tostring(fault)}
  end
  if source and not shown[fault] then
    rawset(fault, 'source', source)
    rawset(fault, 'line', line)
  end
  return fault
end

local of_functions = {}
local exports = {scripts = globals(base), functions = globals(functions, of_functions)}

function exports.run(f, keys, words)
  base.KEYS, base.ARGV = keys, words
  return xpcall(f, handler)
end

function exports.call(f, keys, words)
  return xpcall(function() return f(keys, words) end, handler)
end

-- Runs a library's text, which sees `redis` alone; whether all went well, and the functions, or
-- the error.
function exports.load(chunk)
  registered = {}
  of_functions.__index = loading
  local is_right, fault = xpcall(chunk, handler)
  of_functions.__index = functions
  local made = registered
  registered = nil
  if is_right then return true, made end
  return false, fault
end

return exports
