// go-redis: pipelines, transactions with WATCH from many goroutines, scripts, hashes, scans.
package main

import (
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"gopkg.in/redis.v5"
)

// Adds one to a number by GET and SET, again and again until no other has changed it between.
func raise(client *redis.Client, key string) error {
	for {
		err := client.Watch(func(tx *redis.Tx) error {
			n, err := tx.Get(key).Int64()
			if err != nil && err != redis.Nil {
				return err
			}
			_, err = tx.Pipelined(func(pipe *redis.Pipeline) error {
				pipe.Set(key, n+1, 0)
				return nil
			})
			return err
		}, key)
		if err != redis.TxFailedErr {
			return err
		}
	}
}

func main() {
	c := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	fmt.Println(c.FlushAll().Result())
	fmt.Println(c.Ping().Result())
	fmt.Println(c.Set("a", "one", 100*time.Second).Result())
	fmt.Println(c.SetNX("a", "two", 0).Result())
	fmt.Println(c.Get("a").Result())
	fmt.Println(c.Get("none").Result())
	left, err := c.TTL("a").Result()
	fmt.Println(left > 90*time.Second, err)
	fmt.Println(c.MSet("m1", 1, "m2", 2).Result())
	fmt.Println(c.MGet("m1", "none", "m2").Result())
	pipe := c.Pipeline()
	for index := 0; index < 300; index++ {
		pipe.Set(fmt.Sprintf("k%d", index), index, 0)
	}
	said, err := pipe.Exec()
	fmt.Println(len(said), err)
	tx := c.TxPipeline()
	tx.Incr("n")
	tx.HSet("h", "f", "v")
	tx.Get("n")
	said, err = tx.Exec()
	fmt.Println(said, err)
	tx = c.TxPipeline()
	tx.Incr("a")
	tx.Incr("n")
	said, err = tx.Exec()
	fmt.Println(said, err)
	var all sync.WaitGroup
	for index := 0; index < 20; index++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := raise(c, "raised"); err != nil {
				fmt.Println(err)
			}
		}()
	}
	all.Wait()
	fmt.Println(c.Get("raised").Result())
	script := redis.NewScript("return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}")
	fmt.Println(script.Run(c, []string{"n"}, "x").Result())
	fmt.Println(script.Run(c, []string{"n"}, "y").Result())
	fmt.Println(script.Exists(c).Result())
	fmt.Println(c.Eval("return redis.call('NONSENSE')", nil).Err() != nil)
	fmt.Println(c.HMSet("h", map[string]string{"g": "1", "x": "y"}).Result())
	fmt.Println(c.HGetAll("h").Result())
	fmt.Println(c.HIncrBy("h", "g", 4).Result())
	fmt.Println(c.Get("h").Result())
	found := []string{}
	keys := c.Scan(0, "k1??", 50).Iterator()
	for keys.Next() {
		found = append(found, keys.Val())
	}
	sort.Strings(found)
	fmt.Println(len(found), found[0], keys.Err())
	fmt.Println(c.Del("k1", "k2", "none").Result())
	fmt.Println(c.SetBit("bits", 5, 1).Result())
	fmt.Println(c.BitCount("bits", nil).Result())
	fmt.Println(c.GetRange("a", 1, 2).Result())
	fmt.Println(c.IncrByFloat("f", 0.5).Result())
	fmt.Println(c.Rename("f", "g").Result())
	fmt.Println(c.Expire("g", 50*time.Second).Result())
	fmt.Println(c.Persist("g").Result())
	fmt.Println(c.DbSize().Result())
	two := redis.NewClient(&redis.Options{Addr: os.Args[1], DB: 2})
	fmt.Println(two.Get("a").Result())
	fmt.Println(two.Set("a", "of two", 0).Result())
	fmt.Println(two.FlushDb().Result())
	fmt.Println(c.Get("a").Result())
}
