package rackpool

// #include <rackpool.h>
// #include <stdlib.h>
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Table is a table of the pool as one handle uses it.
type Table struct {
	handle *Handle
	number C.uint32_t
}

// Table opens the table of that name, and makes it first if there is none.
func (h *Handle) Table(ctx context.Context, name string) (*Table, error) {
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	table := &Table{handle: h}
	err := h.within(ctx, func() C.rp_status {
		return C.rp_table_open(h.handle, given, C.RP_TABLE_CREATE, &table.number)
	})
	if err != nil {
		return nil, err
	}
	return table, nil
}

// Get is the value of a key; ErrNotFound without one.
func (t *Table) Get(ctx context.Context, key []byte) ([]byte, error) {
	h := t.handle
	return value(func(to []byte, bytes *C.size_t) (C.rp_status, error) {
		var status C.rp_status
		err := h.within(ctx, func() C.rp_status {
			status = C.rp_table_get(h.handle, t.number, memory(key), C.size_t(len(key)), memory(to),
				C.size_t(len(to)), bytes)
			return status
		})
		return status, err
	})
}

// value reads with as much room as it turns out to need.
func value(get func(to []byte, bytes *C.size_t) (C.rp_status, error)) ([]byte, error) {
	to := make([]byte, 256)
	for {
		var bytes C.size_t
		status, err := get(to, &bytes)
		if status == C.RP_TOO_SMALL {
			to = make([]byte, int(bytes))
			continue
		}
		if err != nil {
			return nil, err
		}
		return to[:bytes], nil
	}
}

func (t *Table) put(ctx context.Context, key, value []byte, mode C.int) error {
	h := t.handle
	return h.within(ctx, func() C.rp_status {
		return C.rp_table_put(h.handle, t.number, memory(key), C.size_t(len(key)), memory(value),
			C.size_t(len(value)), mode)
	})
}

// Put stores a value.
func (t *Table) Put(ctx context.Context, key, value []byte) error {
	return t.put(ctx, key, value, C.RP_PUT_ALWAYS)
}

// Insert stores a value under a new key; ErrOccupied if it is there.
func (t *Table) Insert(ctx context.Context, key, value []byte) error {
	return t.put(ctx, key, value, C.RP_PUT_INSERT)
}

// Update replaces the value of a key; ErrNotFound if it is not there.
func (t *Table) Update(ctx context.Context, key, value []byte) error {
	return t.put(ctx, key, value, C.RP_PUT_UPDATE)
}

// Delete removes a key; ErrNotFound if it is not there.
func (t *Table) Delete(ctx context.Context, key []byte) error {
	h := t.handle
	return h.within(ctx, func() C.rp_status {
		return C.rp_table_delete(h.handle, t.number, memory(key), C.size_t(len(key)))
	})
}

// Keys are those that begin with a prefix, sorted.
func (t *Table) Keys(ctx context.Context, prefix []byte) ([][]byte, error) {
	h := t.handle
	var scan C.uint32_t
	err := h.within(ctx, func() C.rp_status {
		return C.rp_scan_open(h.handle, t.number, memory(prefix), C.size_t(len(prefix)), &scan)
	})
	if err != nil {
		return nil, err
	}
	return h.scanned(ctx, scan)
}

func (h *Handle) scanned(ctx context.Context, scan C.uint32_t) ([][]byte, error) {
	defer checked(func() C.rp_status { return C.rp_scan_close(h.handle, scan) })
	var keys [][]byte
	for {
		var length C.uint64_t
		var ended bool
		key, err := value(func(to []byte, bytes *C.size_t) (C.rp_status, error) {
			var status C.rp_status
			err := h.within(ctx, func() C.rp_status {
				status = C.rp_scan_next(h.handle, scan, memory(to), C.size_t(len(to)), bytes, &length)
				return status
			})
			ended = status == C.RP_NOT_FOUND
			return status, err
		})
		if ended {
			return keys, nil
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
}

// PutObject stores bytes under a name, as `rackpool shell put` does.
func (h *Handle) PutObject(ctx context.Context, name string, data []byte) error {
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	return h.within(ctx, func() C.rp_status {
		return C.rp_object_put(h.handle, given, memory(data), C.size_t(len(data)))
	})
}

// Object is the bytes under a name; ErrNotFound without them.
func (h *Handle) Object(ctx context.Context, name string) ([]byte, error) {
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	return value(func(to []byte, bytes *C.size_t) (C.rp_status, error) {
		var status C.rp_status
		err := h.within(ctx, func() C.rp_status {
			status = C.rp_object_get(h.handle, given, memory(to), C.size_t(len(to)), bytes)
			return status
		})
		return status, err
	})
}

// DeleteObject removes a name; ErrNotFound if it is not there.
func (h *Handle) DeleteObject(ctx context.Context, name string) error {
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	return h.within(ctx, func() C.rp_status { return C.rp_object_delete(h.handle, given) })
}

// Cluster is a pool in this process, for tests.
type Cluster struct {
	cluster *C.rp_cluster
}

// StartCluster starts a master and racks with memory of 64 MiB.
func StartCluster(racks uint16) (*Cluster, error) {
	given := C.rp_cluster_options{racks: C.uint16_t(racks)}
	given.size = C.size_t(unsafe.Sizeof(given))
	cluster := &Cluster{}
	err := checked(func() C.rp_status { return C.rp_cluster_start(&given, &cluster.cluster) })
	if err != nil {
		return nil, err
	}
	return cluster, nil
}

// Master is the address of its master.
func (c *Cluster) Master() (string, error) {
	var text [64]C.char
	err := checked(func() C.rp_status { return C.rp_cluster_master(c.cluster, &text[0], 64) })
	defer runtime.KeepAlive(&text)
	return C.GoString(&text[0]), err
}

// StopRack ends a rack as if its host had died.
func (c *Cluster) StopRack(rack uint16) error {
	return checked(func() C.rp_status {
		return C.rp_cluster_stop_rack(c.cluster, C.uint16_t(rack))
	})
}

// Stop ends it.
func (c *Cluster) Stop() error {
	return checked(func() C.rp_status { return C.rp_cluster_stop(c.cluster) })
}
