# Dalli over both of its protocols.
require "dalli"

def tried
  yield
rescue Dalli::DalliError => error
  error.class.name
end

%i[binary meta].each do |protocol|
  options = { protocol: protocol, namespace: "n", expires_in: 100, compress: true }
  c = Dalli::Client.new(ARGV[0], options)
  c.flush_all
  p protocol, c.set("a", { x: [1, nil] }).is_a?(Integer), c.get("a"), c.get("none")
  p c.add("a", 1), c.add("b", 2).is_a?(Integer)
  p c.replace("b", 3).is_a?(Integer), c.replace("none", 1)
  p c.get_multi("a", "b", "none"), c.delete("b"), c.delete("b")
  p c.incr("n", 5, 0, 40), c.incr("n", 2), c.decr("n", 100), c.incr("none"), c.get("n", raw: true)
  p c.set("long", "x" * 200_000).is_a?(Integer), c.get("long").size
  p tried { c.set("too long", Random.new(1).bytes(3 << 20)) }, c.get("too long")
  p c.fetch("made") { "by block" }, c.fetch("made") { "again" }
  p c.cas("a") { |value| value.merge(y: 2) }.is_a?(Integer), c.get("a"), c.cas("none") { 1 }
  value, cas = c.get_cas("a")
  p value, c.set_cas("a", "new", cas).is_a?(Integer), c.set_cas("a", "lost", cas), c.get("a")
  p c.touch("a", 50), c.touch("none", 50), c.gat("a", 50), c.append("raw", "x")
  p c.set("raw", "b", nil, raw: true).is_a?(Integer), c.append("raw", "c"), c.prepend("raw", "a")
  p c.get("raw", raw: true), c.set("ünï", "ü"*2).is_a?(Integer), c.get("ünï")
  c.multi { 100.times { |n| c.set("q#{n}", n) } }
  p c.get_multi(*(0...100).map { |n| "q#{n}" }).values.sum, c.delete_cas("a", 1)
  p c.stats.values.first.key?("curr_items"), c.version.size, c.flush.size, c.get("raw")
  c.close
end
