// gomemcache: every command that it has, and values of several keys at once.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	c := memcache.New(os.Args[1])
	fmt.Println(c.DeleteAll())
	fmt.Println(c.Set(&memcache.Item{Key: "a", Value: []byte("one"), Flags: 7, Expiration: 100}))
	item, err := c.Get("a")
	fmt.Println(string(item.Value), item.Flags, err)
	_, err = c.Get("none")
	fmt.Println(err, c.Add(&memcache.Item{Key: "a"}))
	fmt.Println(c.Add(&memcache.Item{Key: "b", Value: []byte("1")}))
	item.Value = []byte("two")
	fmt.Println(c.CompareAndSwap(item), c.CompareAndSwap(item), c.Set(&memcache.Item{Key: "bad key"}))
	fmt.Println(c.Increment("b", 41))
	fmt.Println(c.Decrement("b", 50))
	fmt.Println(c.Increment("none", 1))
	fmt.Println(c.Increment("a", 1))
	fmt.Println(c.Touch("a", 50), c.Touch("none", 50), c.Delete("b"), c.Delete("b"))
	long := strings.Repeat("x", 900000)
	fmt.Println(c.Set(&memcache.Item{Key: "long", Value: []byte(long)}))
	item, err = c.Get("long")
	fmt.Println(string(item.Value) == long, err)
	keys := []string{"none"}
	for index := 0; index < 200; index++ {
		key := fmt.Sprintf("many%d", index)
		keys = append(keys, key)
		c.Set(&memcache.Item{Key: key, Value: []byte(key)})
	}
	found, err := c.GetMulti(keys)
	names := []string{}
	for name, item := range found {
		if name != string(item.Value) {
			fmt.Println("wrong:", name)
		}
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println(len(names), names[0], err)
	fmt.Println(c.DeleteAll())
	_, err = c.Get("a")
	fmt.Println(err)
}
