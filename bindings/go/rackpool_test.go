package rackpool

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

var ctx = context.Background()

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func start(t *testing.T) (*Cluster, [2]*Handle) {
	t.Helper()
	cluster := must[*Cluster](t)(StartCluster(2))
	t.Cleanup(func() { cluster.Stop() })
	var handles [2]*Handle
	for rack := range handles {
		options := Options{Master: must[string](t)(cluster.Master()), Rack: uint16(rack)}
		pool := must[*Pool](t)(Open(options))
		handles[rack] = must[*Handle](t)(pool.Handle())
		t.Cleanup(func() { handles[rack].Close(); pool.Close() })
	}
	return cluster, handles
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMemoryIsSharedByRacks(t *testing.T) {
	_, handles := start(t)
	here, there := handles[0], handles[1]
	addr := must[Addr](t)(here.Alloc(ctx, 1<<16, Rack(1)))
	check(t, here.Write(ctx, addr, []byte("across racks")))
	to := make([]byte, 12)
	check(t, there.Read(ctx, addr, to))
	if string(to) != "across racks" {
		t.Fatalf("%q", to)
	}
	check(t, here.Read(ctx, addr, nil))
	pieces := []Piece{{addr + 64, []byte("one")}, {addr + 128, []byte("two")}}
	check(t, here.WriteMany(ctx, pieces))
	read := []Piece{{addr + 64, make([]byte, 3)}, {addr + 128, make([]byte, 3)}}
	check(t, there.ReadMany(ctx, read))
	if string(read[0].Data)+string(read[1].Data) != "onetwo" {
		t.Fatalf("%q", read)
	}

	word := addr + 256
	check(t, here.WriteUint64(ctx, word, 40))
	if before := must[uint64](t)(there.Add(ctx, word, 2)); before != 40 {
		t.Fatal(before)
	}
	found, swapped, err := here.CompareAndSwap(ctx, word, 41, 7)
	if err != nil || swapped || found != 42 {
		t.Fatal(found, swapped, err)
	}
	if _, swapped, _ = here.CompareAndSwap(ctx, word, 42, 7); !swapped {
		t.Fatal("not swapped")
	}
	if value := must[uint64](t)(there.ReadUint64(ctx, word)); value != 7 {
		t.Fatal(value)
	}
	if now := must[Addr](t)(here.SetRoot(ctx, "go", 0, addr)); now != addr {
		t.Fatal(now)
	}
	if root := must[Addr](t)(there.Root(ctx, "go")); root != addr {
		t.Fatal(root)
	}
	check(t, here.Free(ctx, addr, 1<<16))
	if err := there.Read(ctx, addr, to); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
}

func TestPinsAndLocks(t *testing.T) {
	_, handles := start(t)
	here, there := handles[0], handles[1]
	addr := must[Addr](t)(here.Alloc(ctx, 4096, Local))
	pin := must[*Pin](t)(here.Pin(ctx, addr, 4096))
	copy(pin.Bytes(), "direct")
	to := make([]byte, 6)
	check(t, there.Read(ctx, addr, to))
	if string(to) != "direct" || must[bool](t)(pin.Revoked()) {
		t.Fatalf("%q", to)
	}
	check(t, pin.Unpin())
	if err := pin.Unpin(); !errors.Is(err, ErrMisuse) {
		t.Fatal(err)
	}

	lock := must[*Lock](t)(here.Lock(ctx, addr, 0, true))
	check(t, lock.Check(ctx))
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := there.Lock(soon, addr, 0, false)
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if time.Since(began) > 2*time.Second || lock.Token() == 0 {
		t.Fatal(time.Since(began))
	}
	check(t, lock.Unlock(ctx))
	check(t, must[*Lock](t)(there.Lock(ctx, addr, 0, false)).Unlock(ctx))
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := here.Write(cancelled, addr, to); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestTablesAndObjects(t *testing.T) {
	_, handles := start(t)
	here, there := handles[0], handles[1]
	table := must[*Table](t)(here.Table(ctx, "fruit"))
	same := must[*Table](t)(there.Table(ctx, "fruit"))
	long := bytes.Repeat([]byte("x"), 5000)
	check(t, table.Put(ctx, []byte("apple"), long))
	if value := must[[]byte](t)(same.Get(ctx, []byte("apple"))); !bytes.Equal(value, long) {
		t.Fatal(len(value))
	}
	if err := table.Insert(ctx, []byte("apple"), nil); !errors.Is(err, ErrOccupied) {
		t.Fatal(err)
	}
	if err := table.Update(ctx, []byte("pear"), nil); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	check(t, table.Insert(ctx, []byte("pear"), nil))
	keys := must[[][]byte](t)(same.Keys(ctx, nil))
	if string(bytes.Join(keys, []byte(","))) != "apple,pear" {
		t.Fatalf("%q", keys)
	}
	check(t, table.Delete(ctx, []byte("pear")))
	if _, err := same.Get(ctx, []byte("pear")); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	check(t, here.PutObject(ctx, "large", long))
	if data := must[[]byte](t)(there.Object(ctx, "large")); !bytes.Equal(data, long) {
		t.Fatal(len(data))
	}
	check(t, there.DeleteObject(ctx, "large"))
}

func TestAHandleIsOneGoroutinesAtATime(t *testing.T) {
	cluster, handles := start(t)
	addr := must[Addr](t)(handles[0].Alloc(ctx, 64, Rack(1)))
	pool := must[*Pool](t)(Open(Options{Master: must[string](t)(cluster.Master())}))
	defer pool.Close()
	var group sync.WaitGroup
	for range [8]int{} {
		group.Add(1)
		go func() {
			defer group.Done()
			own, err := pool.Handle()
			for i := 0; err == nil && i < 200; i++ {
				_, err = own.Add(ctx, addr, 1)
			}
			if err == nil {
				err = own.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if sum := must[uint64](t)(handles[1].ReadUint64(ctx, addr)); sum != 1600 {
		t.Fatal(sum)
	}
}

func TestADeadRackIsAnErrorInTime(t *testing.T) {
	cluster, handles := start(t)
	addr := must[Addr](t)(handles[0].Alloc(ctx, 4096, Rack(1)))
	check(t, cluster.StopRack(1))
	soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := handles[0].Read(soon, addr, make([]byte, 4096))
	var failure *Error
	if !errors.As(err, &failure) || !failure.Retry || failure.Code == "" {
		t.Fatal(err)
	}
	if time.Since(began) > 3*time.Second {
		t.Fatal(time.Since(began))
	}
}

func BenchmarkReadWarm(b *testing.B) {
	cluster, err := StartCluster(1)
	if err != nil {
		b.Fatal(err)
	}
	defer cluster.Stop()
	master, _ := cluster.Master()
	pool, err := Open(Options{Master: master})
	if err != nil {
		b.Fatal(err)
	}
	handle, err := pool.Handle()
	if err != nil {
		b.Fatal(err)
	}
	addr, err := handle.Alloc(ctx, 64, Local)
	to := make([]byte, 64)
	for i := 0; err == nil && i < b.N; i++ {
		err = handle.Read(ctx, addr, to)
	}
	if err != nil {
		b.Fatal(err)
	}
}
