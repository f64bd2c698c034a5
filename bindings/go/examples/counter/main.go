// A counter service: GET /NAME counts one more under a name that all services of the pool share.
//
//	go run ./examples/counter -master 127.0.0.1:7400 -rack 0 -listen 127.0.0.1:8080
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"sync"

	"rackpool"
)

// counters lends handles to requests: each is one goroutine's at a time.
type counters struct {
	pool    *rackpool.Pool
	handles sync.Pool
}

func (c *counters) handle() (*rackpool.Handle, error) {
	if idle, ok := c.handles.Get().(*rackpool.Handle); ok {
		return idle, nil
	}
	return c.pool.Handle()
}

func (c *counters) count(request *http.Request) (uint64, error) {
	handle, err := c.handle()
	if err != nil {
		return 0, err
	}
	defer c.handles.Put(handle)
	ctx := request.Context()
	name := "counter" + strings.ReplaceAll(request.URL.Path, "/", ".")
	word, err := handle.Root(ctx, name)
	if errors.Is(err, rackpool.ErrNotFound) {
		word, err = create(request, handle, name)
	}
	if err != nil {
		return 0, err
	}
	before, err := handle.Add(ctx, word, 1)
	return before + 1, err
}

// create makes the counter's word, unless another service was first.
func create(
	request *http.Request, handle *rackpool.Handle, name string,
) (rackpool.Addr, error) {
	ctx := request.Context()
	word, err := handle.Alloc(ctx, 64, rackpool.Auto)
	if err != nil {
		return 0, err
	}
	now, err := handle.SetRoot(ctx, name, 0, word)
	if err == nil && now != word {
		err = handle.Free(ctx, word, 64)
	}
	return now, err
}

func (c *counters) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	count, err := c.count(request)
	if err != nil {
		http.Error(answer, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(answer, count)
}

func main() {
	master := flag.String("master", "127.0.0.1:7400", "the pool's master")
	rack := flag.Uint("rack", 0, "the rack of this host")
	listen := flag.String("listen", "127.0.0.1:8080", "where to serve")
	flag.Parse()
	pool, err := rackpool.Open(rackpool.Options{Master: *master, Rack: uint16(*rack)})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, &counters{pool: pool}))
}
