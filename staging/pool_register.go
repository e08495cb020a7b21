package staging

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// register tells the devices of the memory. Each has all of it or nothing.
func (p *Pool) register(ctx context.Context, cfg PoolConfig) error {
	if cfg.Register == Never || len(cfg.Devices) == 0 {
		return nil
	}
	var done []func() error
	p.undo = append(p.undo, func() error { return unregister(done) })
	var refused []string
	for _, dev := range cfg.Devices {
		r, ok := dev.(Registrar)
		if !ok {
			continue
		}
		before := len(done)
		var err error
		for _, area := range p.areas() {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			var undo func() error
			if undo, err = r.Register(area); err != nil {
				break
			}
			// Once: when an undo has failed, the next try must not take it for done.
			done = append(done, sync.OnceValue(func() error {
				if err := undo(); err != nil {
					return fmt.Errorf("%s: unregistering staging memory, which stays mapped: %w", dev.Name(), err)
				}
				return nil
			}))
		}
		if err == nil {
			p.info.Registered = append(p.info.Registered, dev.Name())
			continue
		}
		err = fmt.Errorf("%s: registering staging memory: %w", dev.Name(), err)
		if cfg.Register == Require {
			return err
		}
		if stuck := unregister(done[before:]); stuck != nil {
			return errors.Join(err, stuck)
		}
		done = done[:before]
		refused = append(refused, err.Error())
	}
	p.info.RegisterNote = strings.Join(refused, "; ")
	return nil
}

// unregister undoes registrations, the last one first, all of them whatever fails.
func unregister(done []func() error) error {
	var errs []error
	for _, undo := range slices.Backward(done) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
