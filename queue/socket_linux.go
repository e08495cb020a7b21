package queue

func (d *epollDriver) control(f func(fd uintptr)) error {
	f(uintptr(d.fd))
	return nil
}

func (d *uringDriver) control(f func(fd uintptr)) error {
	f(uintptr(d.fd))
	return nil
}
