//! Scripts without a server: what they compute, what they may not, and how values become answers.

use super::interpreter::{Interpreter, Registered, Task, Wants, Words};
use super::sha1::Sha1;
use super::store::Running;
use crate::front::resp::Version;
use rackpool_mem::process::monotonic_ns;
use std::sync::Arc;

/// Runs a script for a client of this version; `reply` answers each command.
fn run_for(
    interpreter: &mut Interpreter,
    version: Version,
    text: &str,
    reply: &mut dyn FnMut(&[u8]) -> Vec<u8>,
) -> String {
    let exchange = std::rc::Rc::clone(&interpreter.exchange);
    exchange.pace.begin(monotonic_ns(), 2000, 0, None);
    let words = [&b"key"[..], b"other", b"word"];
    let task = Task::Script {
        sha: Sha1::of(text.as_bytes()),
        text: text.as_bytes().into(),
        given: Words::new(words.into_iter(), 2).into(),
        version,
    };
    let mut wants = interpreter.begin(task);
    while wants == Wants::Command {
        let answer = reply(&exchange.words.borrow());
        *exchange.reply.borrow_mut() = answer;
        wants = interpreter.resume();
    }
    exchange.pace.end();
    String::from_utf8_lossy(&exchange.answer.borrow()).into_owned()
}

fn run(text: &str) -> String {
    let mut interpreter = Interpreter::new().unwrap();
    run_for(&mut interpreter, Version::Two, text, &mut |_| panic!("no command was to be called"))
}

/// A script's answer that is a text.
fn text(script: &str) -> String {
    let answer = run(script);
    let (_, rest) = answer.strip_prefix('$').expect(&answer).split_once("\r\n").unwrap();
    rest.strip_suffix("\r\n").unwrap().to_owned()
}

fn fault(script: &str) -> String {
    let answer = run(script);
    let text = answer.strip_prefix('-').expect(&answer).trim_end();
    text.split_once(" script: ").map_or(text, |(text, _)| text).to_owned()
}

#[test]
fn values_become_answers_of_both_versions() {
    let mut interpreter = Interpreter::new().unwrap();
    for (script, two, three) in [
        ("return 1", ":1\r\n", ":1\r\n"),
        ("return 3.9", ":3\r\n", ":3\r\n"),
        ("return -3.9", ":-3\r\n", ":-3\r\n"),
        ("return 'a\\0b'", "$3\r\na\0b\r\n", "$3\r\na\0b\r\n"),
        ("return nil", "$-1\r\n", "_\r\n"),
        ("return true", ":1\r\n", ":1\r\n"),
        ("return false", "$-1\r\n", "_\r\n"),
        ("redis.setresp(3) return true", ":1\r\n", "#t\r\n"),
        ("redis.setresp(3) return false", ":0\r\n", "#f\r\n"),
        ("return {1,'a',{2},nil,3}", "*3\r\n:1\r\n$1\r\na\r\n*1\r\n:2\r\n", ""),
        ("return {}", "*0\r\n", "*0\r\n"),
        ("return {ok='fine'}", "+fine\r\n", "+fine\r\n"),
        ("return {err='MY bad'}", "-MY bad\r\n", "-MY bad\r\n"),
        ("return redis.error_reply('bad')", "-ERR bad\r\n", "-ERR bad\r\n"),
        ("return redis.error_reply('MY bad')", "-MY bad\r\n", "-MY bad\r\n"),
        ("return redis.status_reply('TUNE')", "+TUNE\r\n", "+TUNE\r\n"),
        ("return {double=3.5}", "$3\r\n3.5\r\n", ",3.5\r\n"),
        ("return {map={a=1}}", "*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n$1\r\na\r\n:1\r\n"),
        ("return {set={a=true}}", "*1\r\n$1\r\na\r\n", "~1\r\n$1\r\na\r\n"),
        ("return {big_number='12'}", "$2\r\n12\r\n", "(12\r\n"),
        ("return {verbatim_string={format='txt',string='a'}}", "$1\r\na\r\n", "=5\r\ntxt:a\r\n"),
        ("return pcall", "$-1\r\n", "_\r\n"),
        (
            "return {KEYS[1],KEYS[2],ARGV[1],#KEYS,#ARGV}",
            "*5\r\n$3\r\nkey\r\n$5\r\nother\r\n\
          $4\r\nword\r\n:2\r\n:1\r\n",
            "",
        ),
    ] {
        let mut none = |_: &[u8]| -> Vec<u8> { panic!("no command was to be called") };
        let said = run_for(&mut interpreter, Version::Two, script, &mut none);
        assert_eq!(said, two, "{script}");
        let said = run_for(&mut interpreter, Version::Three, script, &mut none);
        assert_eq!(said, if three.is_empty() { two } else { three }, "{script}");
    }
}

#[test]
fn answers_become_values() {
    let mut interpreter = Interpreter::new().unwrap();
    for (reply, script, said) in [
        (":7\r\n", "return redis.call('a') + 1", ":8\r\n"),
        ("$1\r\nx\r\n", "return type(redis.call('a')) .. redis.call('a')", "$7\r\nstringx\r\n"),
        ("$-1\r\n", "return tostring(redis.call('a'))", "$5\r\nfalse\r\n"),
        ("*-1\r\n", "return tostring(redis.call('a'))", "$5\r\nfalse\r\n"),
        ("_\r\n", "return tostring(redis.call('a'))", "$3\r\nnil\r\n"),
        ("+OK\r\n", "return redis.call('a').ok", "$2\r\nOK\r\n"),
        ("*2\r\n:1\r\n$1\r\nb\r\n", "return #redis.call('a')", ":2\r\n"),
        ("#t\r\n", "return tostring(redis.call('a'))", "$4\r\ntrue\r\n"),
        (",1.5\r\n", "return redis.call('a').double * 2", ":3\r\n"),
        ("%1\r\n+a\r\n:2\r\n", "return type(redis.call('a').map)", "$5\r\ntable\r\n"),
        ("%1\r\n$1\r\na\r\n:2\r\n", "return redis.call('a').map.a", ":2\r\n"),
        ("~1\r\n$1\r\na\r\n", "return tostring(redis.call('a').set.a)", "$4\r\ntrue\r\n"),
        ("=5\r\ntxt:x\r\n", "return redis.call('a').verbatim_string.string", "$1\r\nx\r\n"),
        ("-NO way\r\n", "return redis.pcall('a').err", "$6\r\nNO way\r\n"),
        ("-NO way\r\n", "return redis.pcall('a')", "-NO way\r\n"),
        ("-NO way\r\n", "local is, why = pcall(redis.call, 'a') return why", "$6\r\nNO way\r\n"),
    ] {
        let mut answer = |_: &[u8]| reply.as_bytes().to_vec();
        let answered = run_for(&mut interpreter, Version::Two, script, &mut answer);
        assert_eq!(answered, said, "{reply:?} {script}");
    }
    let mut asked = Vec::new();
    let script = "return redis.call('SET', 'a', 3, 3.3, 1e20, '')";
    run_for(&mut interpreter, Version::Two, script, &mut |words| {
        asked = words.to_vec();
        b"+OK\r\n".to_vec()
    });
    let words = "$3\r\nSET\r\n$1\r\na\r\n$1\r\n3\r\n$18\r\n3.2999999999999998\r\n\
                 $5\r\n1e+20\r\n$0\r\n\r\n";
    assert_eq!(String::from_utf8(asked).unwrap(), words);
    let mut count = 0;
    let script = "local t = {} for i = 1, 7990 do t[i] = i end return redis.call(unpack(t))";
    run_for(&mut interpreter, Version::Two, script, &mut |words| {
        count = words.iter().filter(|byte| **byte == b'$').count();
        b"+OK\r\n".to_vec()
    });
    assert_eq!(count, 7990);
    let error = run_for(&mut interpreter, Version::Two, "\nredis.call('a')", &mut |_| {
        b"-NO way\r\n".to_vec()
    });
    let sha = Sha1::of(b"\nredis.call('a')").hex();
    assert_eq!(error, format!("-NO way script: {sha}, on @user_script:2.\r\n"));
}

#[test]
fn what_is_wrong_with_a_script_is_said_with_its_line() {
    for (script, why) in [
        (
            "return nothing",
            "ERR user_script:1: Script attempted to access nonexistent global \
                            variable 'nothing'",
        ),
        ("a = 1", "ERR user_script:1: Attempt to modify a readonly table"),
        ("\nerror('x')", "ERR user_script:2: x"),
        ("error({err='MY x'})", "MY x"),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call"),
        (
            "return redis.call({})",
            "ERR Lua redis lib command arguments must be strings or \
                                   integers",
        ),
        (
            "return cjson.decode('[1,')",
            "ERR user_script:1: Expected value but found T_END at \
                                        character 4",
        ),
        (
            "return bit.band()",
            "ERR user_script:1: bad argument #1 to 'band' (number expected, got \
                               no value)",
        ),
        ("return redis.sha1hex()", "ERR wrong number of arguments"),
        ("return redis.setresp(4)", "ERR RESP version must be 2 or 3."),
    ] {
        assert_eq!(fault(script), why, "{script}");
    }
    assert!(
        run("return (").starts_with("-ERR Error compiling script (new function): user_script:1:")
    );
}

#[test]
fn what_scripts_share_cannot_be_changed() {
    for script in [
        "_G = {}",
        "KEYS = {}",
        "redis.call = 1",
        "string.upper = 1",
        "cjson.encode = 1",
        "bit.band = 1",
        "setmetatable(_G, {})",
        "local g = getmetatable(_G) g.__index = {}",
        "getmetatable('').__index = {}",
        "rawset(_G, 'a', 1)",
        "rawset(redis, 'a', 1)",
    ] {
        let why = fault(script);
        assert!(why.ends_with("Attempt to modify a readonly table"), "{script}: {why}");
    }
    for name in [
        "io", "require", "dofile", "loadfile", "print", "module", "package", "getfenv", "setfenv",
        "newproxy", "debug", "os",
    ] {
        let why = fault(&format!("return {name}"));
        assert!(why.contains("nonexistent global"), "{name}: {why}");
    }
    let script = "local f, why = loadstring(string.dump(function() end)) return why";
    assert_eq!(text(script), "bytecode is not loaded");
    assert_eq!(run("return loadstring('return ARGV[1]')()"), "$4\r\nword\r\n");
    let pairs = "local n = 0 for name in pairs(bit) do n = n + 1 end return n";
    assert_eq!(run(pairs), ":12\r\n");
    // What one leaves behind another does not see. Random numbers are those of the C library.
    let mut interpreter = Interpreter::new().unwrap();
    let mut none = |_: &[u8]| -> Vec<u8> { panic!("no command was to be called") };
    let mut said = Vec::new();
    for _ in 0..2 {
        let script =
            "math.randomseed(0) KEYS[3] = 'x' return {math.random(1000), math.random(5, 9)}";
        said.push(run_for(&mut interpreter, Version::Two, script, &mut none));
    }
    assert_eq!(said, ["*2\r\n:171\r\n:8\r\n"; 2]);
}

#[test]
fn a_script_ends_when_it_is_to_and_cannot_catch_that() {
    let mut interpreter = Interpreter::new().unwrap();
    let exchange = std::rc::Rc::clone(&interpreter.exchange);
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() end) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "local f f = coroutine.wrap(function() while true do end end) while true do pcall(f) end",
        "local a = ('a'):rep(40) return a:find(('a?'):rep(40) .. a)",
        "local t = {} for i = 1, 1e5 do t[i] = i % 7 end table.sort(t, function(a, b) while true \
         do end end)",
    ] {
        exchange.pace.begin(monotonic_ns(), 30, 0, None);
        let task = Task::Script {
            sha: Sha1::of(script.as_bytes()),
            text: script.as_bytes().into(),
            given: Arc::default(),
            version: Version::Two,
        };
        assert_eq!(interpreter.begin(task), Wants::Nothing);
        let answer = String::from_utf8_lossy(&exchange.answer.borrow()).into_owned();
        let is_late = answer.contains("Script ran for more than 30 ms and was stopped.");
        assert!(is_late, "{script}: {answer}");
    }
    let running = Running::new(false, None);
    exchange.pace.begin(monotonic_ns(), 10_000, 0, Some(Arc::clone(&running)));
    let store = super::ScriptStore::default();
    assert_eq!(store.kill(false).unwrap_err(), "NOTBUSY No scripts in execution right now.");
    store.begins(&running);
    store.kill(false).unwrap();
    let task = Task::Script {
        sha: Sha1::of(b"1"),
        text: b"while true do end"[..].into(),
        given: Arc::default(),
        version: Version::Two,
    };
    interpreter.begin(task);
    let answer = String::from_utf8_lossy(&exchange.answer.borrow()).into_owned();
    assert!(answer.starts_with("-ERR Script killed by user with SCRIPT KILL."), "{answer}");
    running.note_write();
    assert!(store.kill(false).unwrap_err().starts_with("UNKILLABLE "));
}

#[test]
fn memory_and_stack_have_limits() {
    for script in [
        // Few long texts: Lua looks at some bytes of a text alone to tell it from others.
        "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1e5) .. i end",
        "return ('x'):rep(1e9)",
        "local s = 'x' while true do s = s .. s end",
    ] {
        assert!(run(script).contains("not enough memory"), "{script}: {}", run(script));
    }
    let deep = "local function f(n) return 1 + f(n + 1) end return f(1)";
    assert!(run(deep).contains("stack overflow"), "{}", run(deep));
    let nested = "local f f = function(n) return (('a'):gsub('a', function() return f(n + 1) end)) \
                  end return f(1)";
    assert!(run(nested).starts_with("-ERR "), "{}", run(nested));
    let table = "local a = {} a[1] = a return a";
    assert!(run(table).ends_with("*1\r\n-ERR reached lua stack limit\r\n"));
    let deep = "return cjson.encode(cjson.decode(('['):rep(1000) .. (']'):rep(1000))) == \
                ('['):rep(999) .. '{}' .. (']'):rep(999)";
    assert_eq!(run(deep), ":1\r\n");
    assert!(fault("return cjson.decode(('['):rep(1001))").contains("too many nested"));
    assert!(fault("return ('a'):find(('('):rep(40))").contains("too many captures"));
    assert!(fault("return ('a'):rep(300):find(('a?'):rep(300))").contains("pattern too complex"));
}

#[test]
fn json_is_written_and_read() {
    for (script, said) in [
        ("cjson.encode({1,2,'a',true,cjson.null})", "[1,2,\"a\",true,null]"),
        ("cjson.encode({})", "{}"),
        ("cjson.encode({a={b=1.5}})", "{\"a\":{\"b\":1.5}}"),
        ("cjson.encode('a/\"\\n\\1')", "\"a\\/\\\"\\n\\u0001\""),
        ("cjson.encode({[1]=1,[3]=3})", "[1,null,3]"),
        ("cjson.encode({[5]=1,x=1}) == '{\"5\":1,\"x\":1}' and 'a' or 'a'", "a"),
        ("cjson.encode(1/3)", "0.33333333333333"),
        ("cjson.encode(cjson.decode('{\"a\":[1,2,{\"b\":null}]}'))", "{\"a\":[1,2,{\"b\":null}]}"),
        ("cjson.decode('\"\\\\u00e9\\\\ud83d\\\\ude00\"')", "é😀"),
        ("tostring(cjson.decode('[1.5e3]')[1])", "1500"),
        ("tostring(cjson.decode('-0x1F'))", "-31"),
        ("type(cjson.new().encode)", "function"),
    ] {
        assert_eq!(text(&format!("return {script}")), said, "{script}");
    }
    for (script, why) in [
        ("cjson.decode('{1}')", "Expected object key string but found T_NUMBER at character 2"),
        ("cjson.decode('[1 2]')", "Expected comma or array end but found T_NUMBER at character 4"),
        ("cjson.decode('[1]x')", "Expected the end but found invalid token at character 4"),
        ("cjson.decode('\"a')", "Expected value but found unexpected end of string at character 3"),
        ("cjson.encode(pcall)", "Cannot serialise function: type not supported"),
        ("cjson.encode({[1e6]=1})", "Cannot serialise table: excessively sparse array"),
        ("cjson.encode(0/0)", "Cannot serialise number: must not be NaN or Inf"),
    ] {
        assert_eq!(fault(&format!("return {script}")), format!("ERR user_script:1: {why}"));
    }
}

#[test]
fn packed_values_come_back() {
    for (script, said) in [
        ("cmsgpack.pack({1,2,3}) == '\\147\\1\\2\\3'", ":1\r\n"),
        (
            "cmsgpack.pack(-1, 200, 70000, 1.5) == \
             '\\255\\204\\200\\206\\0\\1\\17\\112\\202\\63\\192\
          \\0\\0'",
            ":1\r\n",
        ),
        ("cmsgpack.pack({a=1}) == '\\129\\161a\\1'", ":1\r\n"),
        (
            "cjson.encode(cmsgpack.unpack(cmsgpack.pack({1,{x='y'},false}))) == \
          '[1,{\"x\":\"y\"},false]'",
            ":1\r\n",
        ),
        ("{cmsgpack.unpack_one(cmsgpack.pack(5, 6))}", "*2\r\n:1\r\n:5\r\n"),
        ("{cmsgpack.unpack_one(cmsgpack.pack(5, 6), 1)}", "*2\r\n:-1\r\n:6\r\n"),
        ("{cmsgpack.unpack_limit(cmsgpack.pack(5, 6, 7), 2)}", "*3\r\n:2\r\n:5\r\n:6\r\n"),
        ("{cmsgpack.unpack(cmsgpack.pack(5, nil, 7))}", "*1\r\n:5\r\n"),
        ("struct.pack('>I2i4', 258, -2) == '\\1\\2\\255\\255\\255\\254'", ":1\r\n"),
        (
            "{struct.unpack('<hBs', '\\255\\255\\7abc\\0')}",
            "*4\r\n:-1\r\n:7\r\n$3\r\nabc\r\n:8\r\n",
        ),
        ("{struct.unpack('Bc0', '\\3abcd')}", "*2\r\n$3\r\nabc\r\n:5\r\n"),
        ("struct.size('!8bd')", ":16\r\n"),
        ("struct.pack('d', 1.5) == struct.pack('<d', 1.5)", ":1\r\n"),
        ("bit.tohex(bit.bor(0x0f, 0xf0))", "$8\r\n000000ff\r\n"),
        ("bit.bnot(0)", ":-1\r\n"),
        ("bit.lshift(1, 31)", ":-2147483648\r\n"),
        ("bit.arshift(-8, 1)", ":-4\r\n"),
        ("bit.bswap(0x01020304)", ":67305985\r\n"),
        ("redis.sha1hex('')", "$40\r\nda39a3ee5e6b4b0d3255bfef95601890afd80709\r\n"),
        ("redis.REDIS_VERSION_NUM >= 0x00070000", ":1\r\n"),
    ] {
        assert_eq!(run(&format!("return {script}")), said, "{script}");
    }
    assert_eq!(
        fault("return cmsgpack.unpack('\\147\\1')"),
        "ERR user_script:1: Missing bytes in input."
    );
    assert_eq!(
        fault("return struct.unpack('i', 'a')"),
        "ERR user_script:1: bad argument #2 to 'unpack' (data string too short)"
    );
}

#[test]
fn patterns_find_what_lua_s_do() {
    for (script, said) in [
        ("{('hello world'):find('o w')}", "*2\r\n:5\r\n:7\r\n"),
        ("{('hello'):find('l+')}", "*2\r\n:3\r\n:4\r\n"),
        ("{('a.b'):find('.', 1, true)}", "*2\r\n:2\r\n:2\r\n"),
        ("{('key=value'):match('^(%w+)=(%w*)$')}", "*2\r\n$3\r\nkey\r\n$5\r\nvalue\r\n"),
        ("('  x '):match('^%s*(.-)%s*$')", "$1\r\nx\r\n"),
        ("{('abc'):match('()b()')}", "*2\r\n:2\r\n:3\r\n"),
        ("('f(a(b)c)d'):match('%b()')", "$7\r\n(a(b)c)\r\n"),
        ("('THE (quick) fox'):find('%f[%a]%a+%f[%A]')", ":1\r\n"),
        ("('[x]'):match('[%]x[]+')", "$3\r\n[x]\r\n"),
        ("('abcabc'):match('(abc)%1')", "$3\r\nabc\r\n"),
        ("(('hello'):gsub('l', 'L'))", "$5\r\nheLLo\r\n"),
        ("(('hello'):gsub('', '-'))", "$11\r\n-h-e-l-l-o-\r\n"),
        ("(('hello world'):gsub('(%w+) (%w+)', '%2 %1'))", "$11\r\nworld hello\r\n"),
        ("(('$name is'):gsub('%$(%w+)', {name='x'}))", "$4\r\nx is\r\n"),
        (
            "(('abc'):gsub('%w', function(c) if c ~= 'b' then return c .. c end end))",
            "$5\r\naabcc\r\n",
        ),
        ("select(2, ('aaa'):gsub('a', 'b', 2))", ":2\r\n"),
        ("(('aab'):gsub('^a', 'x'))", "$3\r\nxab\r\n"),
        ("('a'):find('b')", "$-1\r\n"),
        ("('x'):rep(3)", "$3\r\nxxx\r\n"),
    ] {
        assert_eq!(run(&format!("return {script}")), said, "{script}");
    }
    let words = "local t = {} for w in ('one two  three'):gmatch('%a+') do t[#t+1] = w end return \
                 table.concat(t, ',')";
    assert_eq!(text(words), "one,two,three");
    let pairs = "local t = {} for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do \
                 t[#t+1] = k .. v end \
                 return table.concat(t)";
    assert_eq!(text(pairs), "a1b2");
    let sorted = "local t = {} for i = 1, 10000 do t[i] = (i * 7919) % 10007 end table.sort(t) for \
                  i = 2, #t do if t[i - 1] > t[i] then return 0 end end return 1";
    assert_eq!(run(sorted), ":1\r\n");
    assert_eq!(
        fault("return ('a'):find('[a')"),
        "ERR user_script:1: malformed pattern (missing ']')"
    );
    assert_eq!(
        fault("return ('a'):find('%')"),
        "ERR user_script:1: malformed pattern (ends with '%')"
    );
}

#[test]
fn a_library_registers_functions_and_calls_nothing_meanwhile() {
    let mut interpreter = Interpreter::new().unwrap();
    let exchange = std::rc::Rc::clone(&interpreter.exchange);
    let mut load = |text: &str| {
        exchange.pace.begin(monotonic_ns(), 500, 0, None);
        let wants = interpreter.begin(Task::Load { text: text.as_bytes().into() });
        assert_eq!(wants, Wants::Nothing, "{text}");
        let said = String::from_utf8_lossy(&exchange.answer.borrow()).trim_end().to_owned();
        (said, exchange.registered.take())
    };
    let (said, functions) = load(
        "\nlocal n = 0 redis.register_function('f', function(keys, args) return args[1] end) \
         redis.register_function{function_name='g', callback=function() end, flags={'no-writes'}, \
         description='about'}",
    );
    assert_eq!(said, "");
    let one = |name: &str, flags: &[&str], about: Option<&str>| Registered {
        name: name.as_bytes().to_vec(),
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        about: about.map(|about| about.as_bytes().to_vec()),
    };
    assert_eq!(functions, [one("f", &[], None), one("g", &["no-writes"], Some("about"))]);
    for (text, why) in [
        ("redis.call('ping')", "nonexistent global variable 'call'"),
        ("return KEYS", "nonexistent global variable 'KEYS'"),
        ("redis.register_function('f')", "only applicable to Lua table"),
        ("redis.register_function('a b', function() end)", "Library names can only contain"),
        ("x = 1", "Attempt to modify a readonly table"),
        ("while true do end", "ERR FUNCTION LOAD timeout"),
        ("local x = math.pi", "nonexistent global variable 'math'"),
    ] {
        let (said, functions) = load(text);
        assert!(said.starts_with("-ERR Error registering functions: "), "{text}: {said}");
        assert!(said.contains(why) && functions.is_empty(), "{text}: {said}");
    }
    assert!(load("(").0.starts_with("-ERR Error compiling function: "));
}
