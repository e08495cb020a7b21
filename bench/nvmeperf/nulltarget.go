package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// targetSpin is how long the target polls. It has a CPU of its own, and is not what is measured.
const targetSpin = 50 * time.Microsecond

// nullTargetCommand is the target of a comparison, in a process of its own. ../target has one with flags.
func nullTargetCommand(*pflag.FlagSet) runner {
	return func(ctx context.Context, con console) error {
		tgt, err := nvmetest.Start(nvmetest.Config{Spin: targetSpin, Subsystems: []nvmetest.Subsystem{{
			NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: nvmetest.Null(64 << 30)}},
		}}})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(con.out, tgt.Addr())
		if err == nil {
			<-ctx.Done()
		}
		return errors.Join(err, tgt.Close())
	}
}
